"""Draw ``docs/overview.png``, the picture in README.md, from two recorded traces: ``python docs/overview.py``."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from utils.timeline import timeline  # noqa: E402
from utils.trace import Trace  # noqa: E402

WINDOW_US = 20_000


def first_layers(stem: str) -> Trace:
    """A recorded trace from its first copy on, device lanes only."""
    trace = Trace.load(ROOT / "traces" / f"{stem}.json.gz")
    columns = trace.columns
    starts, kinds = columns["start_us"], columns["kind"]
    begin = min(start for start, kind in zip(starts, kinds, strict=True) if kind == "h2d")
    kept = [i for i, kind in enumerate(kinds) if kind in ("h2d", "kernel") and starts[i] >= begin]
    cut = {name: [values[i] for i in kept] for name, values in columns.items()}
    cut["start_us"] = [start - begin for start in cut["start_us"]]
    return Trace.from_columns(cut, name=stem)


def main() -> None:
    """Draw both runs on one time axis."""
    runs = {"one after the other": first_layers("h200_serial_b8192"),
            "copying the next layer while computing this one": first_layers("h200_double_buffer_b8192")}
    picture = timeline(runs, start=0, stop=WINDOW_US, lanes=("h2d", "compute"),
                       title="A model whose weights stay in host memory, on an H200")
    bundle = picture._repr_mimebundle_()
    png = (bundle[0] if isinstance(bundle, tuple) else bundle)["image/png"]
    if isinstance(png, str):
        import base64
        png = base64.b64decode(png)
    (ROOT / "docs" / "overview.png").write_bytes(png)


if __name__ == "__main__":
    main()
