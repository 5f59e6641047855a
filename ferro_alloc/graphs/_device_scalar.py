"""One value in device memory, which graphs read and programs change between launches."""

from __future__ import annotations

import numbers
from typing import TYPE_CHECKING, Any, cast

from ferro_alloc._devices import device_index
from ferro_alloc._errors import FerroError
from ferro_alloc.graphs._streams import check_stream, require_device

if TYPE_CHECKING:
    import torch

    from ferro_alloc import _C

Number = bool | int | float | complex


class DeviceScalar:
    """A value at an address that never changes. Kernels read it as a tensor without dimensions.

    `DeviceScalar(value, dtype)` or `DeviceScalar(dtype, value)`. `dtype`: a numeric type of at most
    8 bytes. `stream`: that of updates without a stream; None: the current one. `device`: by default
    the stream's, else the current one, in any form that torch accepts. The value is written when
    the constructor returns. The object must outlive the graphs that read it: keep it, or pass it to
    `record_buffer()` of their pool. Raises `RuntimeError` for a value beyond the type's range, and
    `FerroError` for other arguments, without a device, and during a capture, which would make the
    memory part of the graph.
    """

    def __init__(
        self,
        value: Number | torch.dtype,
        dtype: torch.dtype | Number,
        stream: torch.cuda.Stream | None = None,
        *,
        device: int | str | torch.device | None = None,
    ) -> None:
        extension = require_device("a DeviceScalar")
        import torch

        if isinstance(value, torch.dtype):
            value, dtype = dtype, value
        if dtype not in _types():
            known = ", ".join(str(known).removeprefix("torch.") for known in _types())
            raise FerroError(f"{dtype} cannot be the type of a DeviceScalar: expected {known}")
        value = _plain(value)
        self._stream = check_stream(stream)
        if stream is not None:
            device = stream.device if device is None else device
        index = device_index(device)
        number = _number(stream, index)
        current = torch.cuda.current_stream(index)
        if extension.capture_status(index, current.cuda_stream) != 0:
            raise FerroError("a DeviceScalar cannot be created during a capture: create it before")
        self._tensor = torch.empty((), dtype=dtype, device=torch.device("cuda", index))
        self._scalar: _C.DeviceScalar = extension.DeviceScalar(self._tensor, number)
        self._scalar.update(value, _number(current, index))
        current.synchronize()  # other streams may read and write it from now on

    @property
    def tensor(self) -> torch.Tensor:
        """The value itself, not a copy."""
        return self._tensor

    @property
    def dtype(self) -> torch.dtype:
        return self._tensor.dtype

    @property
    def stream(self) -> torch.cuda.Stream | None:
        """The stream that the constructor was given."""
        return self._stream

    def update(self, value: Number, stream: torch.cuda.Stream | None = None) -> None:
        """Writes `value` after all earlier and before all later work of the scalar's stream and of
        the current one; with `stream`, of that stream alone. The host does not wait, and may call
        it again at once. In a capture the graph writes this value at each launch. Raises
        `RuntimeError` for a value that the type cannot hold, and `FerroError` for something that
        is no number, and for a stream of another device."""
        self._scalar.update(_plain(value), _number(stream, self._tensor.device.index))

    def __repr__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return f"<DeviceScalar {name} on device {self._tensor.device.index}>"


def _plain(value: Any) -> Number:
    """The value as a number of Python: those of numpy and fractions are others."""
    if type(value) in (int, float, bool, complex):
        return cast(Number, value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, numbers.Complex):
        return complex(value)
    raise FerroError(f"a DeviceScalar cannot hold {value!r}: expected a number")


def _number(stream: torch.cuda.Stream | None, device: int) -> int | None:
    checked = check_stream(stream)
    if checked is None:
        return None
    if checked.device_index != device:
        raise FerroError(
            f"the stream is of device {checked.device_index}, and the DeviceScalar of device "
            f"{device}: expected one device"
        )
    return int(checked.cuda_stream)


def _types() -> tuple[torch.dtype, ...]:
    import torch

    return (
        torch.bool,
        torch.uint8,
        torch.uint16,
        torch.uint32,
        torch.uint64,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.complex64,
    )
