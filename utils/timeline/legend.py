"""The legend of a picture: what its colours and hatches mean, in as many lines as its width takes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.patches import Patch

from .graph_layout import GraphView
from .kinds import CRITICAL, GAP, INK, KINDS
from .lanes import FONT
from .model import Panel
from .names import inches

BESIDE_EM = 1.6 + 0.8 + 1.2     # an entry's patch, and the room behind the patch and behind the entry, in font sizes


def legend_handles(panels: Sequence[Panel], graph: GraphView | None, uneven: bool) -> list[Patch]:
    """One patch for each kind that occurs, then for what is outlined, idle, and (``uneven``) drawn as blocks."""
    codes = {int(code) for panel in panels for code in np.unique(panel.kind)} | set(graph.kinds if graph else ())
    handles = [Patch(facecolor=KINDS[code].colour, edgecolor=INK, linewidth=0.7, hatch=KINDS[code].hatch or None,
                     label=KINDS[code].word) for code in sorted(codes)]
    if any(panel.critical.any() for panel in panels) or (graph and graph.path):
        paths = any(panel.path for panel in panels) or graph
        handles.append(Patch(facecolor="none", edgecolor=CRITICAL, linewidth=2.2,
                             label="critical path" if paths else "outlined"))
    if any(starts.size for panel in panels for starts, _ in panel.gaps.values()):
        handles.append(Patch(facecolor=GAP, edgecolor="none", label="idle"))
    if uneven:
        handles.append(Patch(facecolor="#999999", label="uneven blocks: many short spans, height = busy"))
    return handles


def legend_lines(handles: Sequence[Patch], width_in: float) -> list[list[Patch]]:
    """The entries in lines of at most this width, at least one line."""
    lines, used = [[]], 0.0
    for handle in handles:
        wide = inches(str(handle.get_label()), FONT) + BESIDE_EM * FONT / 72
        if lines[-1] and used + wide > width_in:
            lines.append([])
            used = 0.0
        lines[-1].append(handle)
        used += wide
    return lines
