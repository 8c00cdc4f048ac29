"""What the tests of lab 07's checks share."""

from answers import trial

from utils.labs.lab07 import check
from utils.lessons import import_lesson

SOLUTION = import_lesson("solutions/07_async_batching")
judged, refused, passes = trial(check)
