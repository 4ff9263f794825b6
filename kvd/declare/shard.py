"""How tensor parallelism cuts a model: which counts divide, which are replicated."""

from dataclasses import dataclass

from kvd.errors import DeclareError
from kvd.units import exact_div
from kvd_proto.memory import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShape:
    """What one rank of a stage holds of every layer."""

    tp_count: int
    kv_dtype: DType
    """Type of keys, values and latents."""
    conv_dtype: DType = DType.BFLOAT16
    recurrent_dtype: DType = DType.FLOAT32
    """Recurrent states lose accuracy in 16 bits, so engines keep them in 32."""

    def divided(self, count: int, *, key: str) -> int:
        """Return a count that every rank holds an equal share of; DeclareError if it is uneven."""
        if count % self.tp_count != 0:
            raise DeclareError(
                f"{key} is {count}, which {self.tp_count} tensor-parallel ranks cannot share evenly"
            )
        return exact_div(count, self.tp_count)

    def divided_or_replicated(self, count: int, *, key: str) -> int:
        """Return the share of a count that is replicated once there are more ranks than items.

        Raises DeclareError when neither number divides the other.
        """
        if count % self.tp_count == 0:
            return exact_div(count, self.tp_count)
        if self.tp_count % count == 0:
            return 1
        raise DeclareError(
            f"{key} is {count}: {self.tp_count} tensor-parallel ranks can neither share it evenly "
            "nor replicate it evenly"
        )


def kv_dtype_of(name: str) -> DType:
    """Return the element type that a ``kv_dtype`` input names; DeclareError if it is unknown."""
    dtypes = {"bf16": DType.BFLOAT16, "fp8": DType.UINT8}
    if name not in dtypes:
        raise DeclareError(f"kv_dtype is {name!r}: expected bf16 or fp8")
    return dtypes[name]
