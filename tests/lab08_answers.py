"""What the tests of lab 08's checks share."""

from answers import trial

from utils.labs.lab08 import check
from utils.lessons import import_lesson

SOLUTION = import_lesson("solutions/08_cuda_graphs")
judged, refused, passes = trial(check)
