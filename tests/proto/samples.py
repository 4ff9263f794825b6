"""One instance of every message, with a value of its own in every field."""

import numpy as np
from msgspec import Struct

from kvd_proto.control import (
    Ack,
    Books,
    BooksReply,
    Bye,
    Descriptors,
    ErrorReply,
    FetchDescriptors,
    FreeQuarantined,
    Header,
    HealthRequest,
    Hello,
    MessageKind,
    Mode,
    Ping,
    Role,
    StatsRequest,
    Ticket,
    Welcome,
    WhatIf,
    WhatIfReply,
    WhatIfStep,
)
from kvd_proto.memory import (
    AttentionPart,
    BandMap,
    BandPlan,
    DeclaredConfig,
    DeclaredLayers,
    DType,
    LatentPart,
    LayerDecl,
    LayerView,
    Lifetime,
    ModelRole,
    RegionPlan,
    SizingInputs,
    StatePart,
    StateTensor,
    StoragePlan,
    TablePlan,
)
from kvd_proto.operations import (
    Admit,
    Advance,
    BackupSubmit,
    BatchEnd,
    CancelHold,
    CopyEnded,
    Evict,
    Free,
    Hold,
    Idle,
    IncarnationEnd,
    Insert,
    Launch,
    LoadCancel,
    LoadName,
    LoadReserve,
    LoadSubmit,
    Post,
    Processed,
    Publish,
    RankFailed,
    Released,
    Relief,
    ResetSink,
    Standing,
    StepAborted,
    TablesRewritten,
    Take,
    TransferEnded,
    WriteSet,
)
from kvd_proto.outcomes import (
    AdmitResult,
    BatchReply,
    ClearSlots,
    Column,
    Copy,
    CopyStream,
    Done,
    Entry,
    Failed,
    Freed,
    Move,
    NotRun,
    Outcome,
    Pump,
    Reason,
    Refusal,
    ReleasedResult,
    ResetRows,
    Resolved,
    Skipped,
    TakeResult,
    Wait,
    WriteMap,
    WriteRows,
    WriteSlots,
    Zero,
    ZeroSink,
)


def int64s(*values: int) -> bytes:
    """Return request ids as they travel."""
    return np.array(values, dtype="<i8").tobytes()


def int32s(*values: int) -> bytes:
    """Return token counts as they travel."""
    return np.array(values, dtype="<i4").tobytes()


_TENSOR = StateTensor(shape=(4, 128), dtype=DType.FLOAT32)
_ATTENTION = AttentionPart(
    kv_head_count=8,
    key_element_count=64,
    value_element_count=32,
    dtype=DType.FLOAT16,
    window_tokens=128,
)
_LATENT = LatentPart(
    element_count=576, value_element_count=512, dtype=DType.UINT8, window_tokens=4096
)
_STATE = StatePart(conv=(StateTensor(shape=(3,), dtype=DType.BFLOAT16),), recurrent=_TENSOR)
_LAYER = LayerDecl(parts=(_ATTENTION, _STATE))
_LAYERS = DeclaredLayers(
    layers=(_LAYER, LayerDecl(shares_layer_index=0), LayerDecl(parts=(_LATENT,))),
    context_tokens=131_072,
    draft_layers=(LayerDecl(parts=(_ATTENTION,)),),
    name="golden",
)
_CONFIG = DeclaredConfig(config_json=b"{}", draft_config_json=b"[]", name="golden")
_SIZING = SizingInputs(
    budget_bytes=1 << 33,
    page_tokens=64,
    context_tokens=8192,
    running_requests_count=256,
    state_share=0.5,
    state_slots=100,
    chunk_tokens=2048,
    draft_tokens=4,
    cached_slots=1,
    tracking_slots=2,
    checkpoint_tokens=256,
    kv_dtype="fp8",
    stage_layers_count=(2, 1),
    overlap=True,
)


def _table(name: str, dtype: DType, rows: int, columns: int) -> TablePlan:
    return TablePlan(
        name=name, offset_bytes=1 << 32, dtype=dtype, row_count=rows, column_count=columns
    )


_REGION = RegionPlan(
    band_maps=(BandMap(band="full", offset_bytes=1 << 33, entry_count=100),),
    request_table=_table("request_table", DType.INT32, 257, 2049),
    row_lengths=_table("row_lengths", DType.INT32, 257, 1),
    progress=_table("progress", DType.UINT64, 1, 2),
    scratch=_table("scratch", DType.UINT8, 1, 1 << 20),
    state_table=_table("state_table", DType.INT32, 257, 3),
    draft_states=_table("draft_states", DType.UINT8, 1028, 4096),
)
_BAND = BandPlan(
    name="window_128",
    lifetime=Lifetime.WINDOW,
    chain_index=1,
    entry_bytes=1024,
    unit_bytes=65_536,
    page_tokens=64,
    unit_index_min=1,
    unit_index_end_count=1000,
    window_tokens=128,
)
_VIEW = LayerView(
    layer_index=3,
    band="window_128",
    role="k",
    dtype=DType.BFLOAT16,
    offset_bytes=(1 << 32) + 16,
    index_stride_bytes=1024,
    index_end_count=64_000,
    shape=(8, 64),
    strides_bytes=(128, 2),
    model=ModelRole.DRAFT,
)
_PLAN = StoragePlan(
    stage_index=1,
    arena_bytes=1 << 32,
    total_bytes=(1 << 32) + 4096,
    sink_bytes=65_536,
    page_tokens=64,
    context_tokens=131_072,
    row_count=257,
    row_pages=2049,
    virtual_page_count=1000,
    bands=(_BAND,),
    views=(_VIEW,),
    region=_REGION,
    virtual_slot_count=12,
)
_REFUSAL = Refusal(
    reason=Reason.TRANSFERS,
    stage=1,
    band="full",
    request=7,
    short_units=3,
    short_bytes=196_608,
    obstacle="pages that a transfer reads",
    remover="the transfer's end",
    waiting_helps=True,
)
_C0, _C1, _C2, _C3, _C4, _C5, _C6, _C7 = (Column(index) for index in range(8))
_NONE = Column(-1)
_OUTCOME = Outcome(
    TakeResult(page_rows=_C0, page_places=_C1, virtual=_C2, physical=(_C3, _NONE), retracted=_C4),
    ((Zero(0, _C3), WriteMap(0, _C2, _C3), WriteRows(_C0, _C1, _C2)), (Wait(4),)),
    (1, 1, 1, 1, 2),
    int32s(5, 0, 9, 11, 3, 2),
)
_ENTRY = Entry(0, 12, 0xFEDC_BA98_7654_3210, _OUTCOME)

SAMPLES: dict[str, Struct] = {
    "frame.header": Header(MessageKind.BATCH, 11, 12, 13, 14),
    "frame.outcome": _OUTCOME,
    "frame.entry": _ENTRY,
    "frame.batch_reply": BatchReply(13, (_ENTRY,)),
    "operation.admit": Admit(
        int64s(1, 2), int32s(100, 200), int32s(16, 32), int32s(64, 64), 512, 8, 250, int64s(3)
    ),
    "operation.standing": Standing(int64s(1), int64s(2)),
    "operation.take": Take(int64s(1, 1 << 40), 3, int32s(1, 2), int64s(4)),
    "operation.advance": Advance(int64s(1, 2), 4, int32s(3, 4)),
    "operation.free": Free(int64s(1)),
    "operation.relief": Relief((1, 0, 300)),
    "operation.launch": Launch(5, 70_000, WriteSet.REQUESTS, int64s(1, 2)),
    "operation.processed": Processed(5),
    "operation.idle": Idle(),
    "operation.batch_end": BatchEnd(),
    "operation.reset_sink": ResetSink(),
    "operation.insert": Insert(5, 7),
    "operation.evict": Evict(int64s(5, 6)),
    "operation.load_reserve": LoadReserve(3, 5, (0, 2, 0)),
    "operation.load_name": LoadName(3, 1, int64s(8, 9)),
    "operation.load_submit": LoadSubmit(3, (b"", int32s(0, 1), b"")),
    "operation.load_cancel": LoadCancel(3),
    "operation.backup_submit": BackupSubmit(4, (int64s(2), b""), (int32s(7), b"")),
    "operation.hold": Hold(2, (b"", int64s(8, 9))),
    "operation.publish": Publish(2),
    "operation.post": Post(3, (int64s(1), int64s(8))),
    "operation.cancel_hold": CancelHold(2),
    "fact.step_aborted": StepAborted(6),
    "fact.rank_failed": RankFailed("device error"),
    "fact.copy_ended": CopyEnded(3, True),
    "fact.transfer_ended": TransferEnded(2, True, False),
    "own.incarnation_end": IncarnationEnd("rank 1 ended"),
    "own.tables_rewritten": TablesRewritten(),
    "own.released": Released((3, 4), (4,), (1,), (2,)),
    "effect.zero": Zero(1, _C2),
    "effect.write_map": WriteMap(1, _C2, _C3),
    "effect.write_rows": WriteRows(_C1, _C2, _C3),
    "effect.write_slots": WriteSlots(_C1, _C2),
    "effect.move": Move(1, _C2, _C3),
    "effect.wait": Wait(9, 3),
    "effect.reset_rows": ResetRows(_C1),
    "effect.clear_slots": ClearSlots(_C1),
    "effect.copy": Copy(3, CopyStream.LOAD, 1, _C2, _C3),
    "effect.zero_sink": ZeroSink(),
    "result.done": Done(),
    "result.refusal": _REFUSAL,
    "result.admitted": AdmitResult(
        _C0, _C1, _C2, _C3, (_REFUSAL,), _C4, _C5, _C6, (_C7, _NONE), _C7
    ),
    "result.taken": TakeResult(_C0, _C1, _C2, (_C3, _NONE), _C4),
    "result.freed": Freed((1, 2)),
    "result.resolved": Resolved((_C0, _NONE), 12),
    "result.pump": Pump((2, 3)),
    "result.released": ReleasedResult((3, 4), (4,), (1,), (2,)),
    "result.skipped": Skipped(8),
    "result.not_run": NotRun(),
    "result.failed": Failed("BAD_PAGE", "virtual page 0 is the sink"),
    "control.hello": Hello(
        version_min=1,
        version_max=2,
        build="0.1.0",
        ticket=1 << 60,
        group="g",
        role=Role.WORKER,
        mode=Mode.FOLLOWER,
        stage=1,
        rank=1,
        tp=2,
        pp=2,
        program=3,
        declare=_LAYERS,
        sizing=_SIZING,
        gpu_uuid="GPU-1",
        pid=42,
        started_at="2026-01-01T00:00:00Z",
    ),
    "control.welcome": Welcome(
        version=1,
        build="0.1.0",
        epoch=1 << 50,
        token=1 << 51,
        incarnation=2,
        heartbeat_ms=1000,
        frame_bytes_max=1 << 24,
        next_index=4,
        position=5,
        asked_bytes=1 << 33,
        granted_bytes=1 << 32,
        minimum_rank=1,
        plan=_PLAN,
        redo=b"\x92\x07\x90",
        values=(4, 9),
        check_level="strict",
    ),
    "control.ping": Ping(),
    "control.bye": Bye(reason="drained"),
    "control.ack": Ack(),
    "control.error": ErrorReply(code="BUSY", message="not quiet yet", retry=True),
    "control.stats_request": StatsRequest(),
    "control.health_request": HealthRequest(),
    "control.what_if": WhatIf(
        demand_units=(1, 2), prompt_tokens=100, new_tokens_max=50, chunk_tokens=64
    ),
    "control.books": Books(),
    "control.books_reply": BooksReply(
        position_min=7,
        position=9,
        map_digests=(1 << 63, 2),
        rows=b"\x01\0\0\0",
        page_counts=b"\x02\0\0\0",
        row_digests=(3,),
        slots_digest=4,
    ),
    "control.what_if_reply": WhatIfReply(
        demand_units=(1, 2),
        fits_empty=True,
        new_tokens=40,
        steps=(WhatIfStep("relief", True, "RELAYOUT", (3, 0), 196_608),),
        obstacle="live and promised units fill the arena",
        chunk_tokens=2048,
    ),
    "control.ticket": Ticket(ticket=1 << 60, epoch=1 << 50),
    "control.fetch": FetchDescriptors(token=1 << 51),
    "control.descriptors": Descriptors(names=("arena", "fence"), sizes_bytes=(1 << 33, 4096)),
    "control.free_quarantined": FreeQuarantined(
        group="golden", stage=1, rank=3, evidence="the host was restarted"
    ),
    "memory.attention": _ATTENTION,
    "memory.latent": _LATENT,
    "memory.state": _STATE,
    "memory.layers": _LAYERS,
    "memory.config": _CONFIG,
}
