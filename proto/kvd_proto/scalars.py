"""Names for the integers that cross the wire, so that two of them cannot be mixed up."""

from typing import NewType

RequestId = NewType("RequestId", int)
"""Chosen by the program: a positive 64-bit integer, ascending within an incarnation."""

ProgramIndex = NewType("ProgramIndex", int)
"""Number of an operation among those of its program; the first is 0."""

Position = NewType("Position", int)
"""Place of an entry in the stage's log; the first entry is 1, so 0 means nothing applied."""

StepNumber = NewType("StepNumber", int)
"""Number of a forward in launch order; the first step is 1."""

VirtualPage = NewType("VirtualPage", int)
"""Name of a page that clients keep; survives moves. Page 0 is the sink."""

PhysicalPage = NewType("PhysicalPage", int)
"""Place of a page or slot on its band's own grid, counted from arena byte 0. Page 0 is the sink."""
