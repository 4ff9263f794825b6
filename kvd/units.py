"""Integer arithmetic on quantities: the only place where rounding is spelled out."""


def ceil_div(dividend: int, divisor: int) -> int:
    """Return the quotient rounded up; ``divisor`` is positive."""
    assert divisor > 0
    return -(-dividend // divisor)


def floor_div(dividend: int, divisor: int) -> int:
    """Return the quotient rounded down; ``divisor`` is positive."""
    assert divisor > 0
    return dividend // divisor


def exact_div(dividend: int, divisor: int) -> int:
    """Return the quotient of a division that leaves no remainder."""
    assert divisor > 0
    quotient, remainder = divmod(dividend, divisor)
    assert remainder == 0, f"{dividend} is not a multiple of {divisor}"
    return quotient


def align_up(value: int, grain: int) -> int:
    """Return the smallest multiple of ``grain`` that is at least ``value``."""
    return ceil_div(value, grain) * grain


def align_down(value: int, grain: int) -> int:
    """Return the largest multiple of ``grain`` that is at most ``value``."""
    return floor_div(value, grain) * grain
