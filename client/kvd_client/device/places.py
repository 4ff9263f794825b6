"""What effects ask of a plan, worked out once: limits of their numbers, places of tables."""

from dataclasses import dataclass

from kvd_proto.memory import Lifetime, StoragePlan


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTable:
    """Two tables of int32 that belong together: the pages of each row, and its length."""

    pages_offset_bytes: int
    lengths_offset_bytes: int
    row_count: int
    row_pages: int
    page_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BandPlaces:
    """Which units a band has, and where its map lies."""

    name: str
    unit_bytes: int
    unit_index_min: int
    """First unit of its grid outside the sink."""
    unit_index_end_count: int
    """One behind the last unit."""
    map_offset_bytes: int
    map_entry_count: int


class PlanPlaces:
    """The places of one plan, as plain attributes of one object."""

    __slots__ = (
        "bands",
        "plan",
        "progress_offset_bytes",
        "row_count",
        "row_pages",
        "row_table",
        "state",
        "virtual_page_count",
    )

    def __init__(self, plan: StoragePlan) -> None:
        """Read everything from a plan."""
        self.plan = plan
        self.bands = tuple(
            BandPlaces(
                name=band.name,
                unit_bytes=band.unit_bytes,
                unit_index_min=band.unit_index_min,
                unit_index_end_count=band.unit_index_end_count,
                map_offset_bytes=table.offset_bytes,
                map_entry_count=table.entry_count,
            )
            for band, table in zip(plan.bands, plan.region.band_maps, strict=True)
        )
        self.state = next(
            (
                places
                for band, places in zip(plan.bands, self.bands, strict=True)
                if band.lifetime is Lifetime.STATE
            ),
            None,
        )
        """The state band, or None."""
        table, lengths = plan.region.request_table, plan.region.row_lengths
        self.row_table = RowTable(
            pages_offset_bytes=table.offset_bytes,
            lengths_offset_bytes=lengths.offset_bytes,
            row_count=table.row_count,
            row_pages=plan.row_pages,
            page_tokens=plan.page_tokens,
        )
        """The tables that pages of requests are written to."""
        self.progress_offset_bytes = plan.region.progress.offset_bytes
        self.row_count = plan.row_count
        self.row_pages = plan.row_pages
        self.virtual_page_count = plan.virtual_page_count
