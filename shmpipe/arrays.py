"""NumPy arrays as messages: from their memory into the ring, and out of it, without a pickle.

An array is an OBJECT message (see ``objects``) with one buffer, its items, and in place of the
pickle a description of them (see ``layouts``).  So receivers that know nothing of arrays handle it
as they do every object: ``recv()`` gives the array, ``recv_bytes()`` a pickle of it.  Nothing that
is received is unpickled here.
"""

from __future__ import annotations

import operator
import sys
import weakref
from functools import partial
from types import FrameType
from typing import Any

import numpy

from . import variables
from .frames import OBJECT
from .layouts import Array, Layout, bytes_of, found_in, grows, head_of, layout_of, not_an_array
from .lending import Received, Reserved
from .objects import Message
from .receiving import Receiver
from .sending import Sender

_SURELY_SO_MANY = 16  # dimensions; NumPy 1 has up to 32, those in the type among them


def dump(a: Any) -> tuple[int, Any, int]:
    """What ``Sender.send`` takes (kind, content, size)."""
    if isinstance(a, numpy.ma.MaskedArray):
        raise TypeError("a masked array is two arrays: send() takes it, or send both")
    array = numpy.asarray(a)
    if array.dtype.hasobject and not isinstance(a, numpy.ndarray):
        kind = type(a).__name__
        raise TypeError(
            f"expected an array, or what makes one of numbers, not {kind}: send() takes it"
        )
    dtype = array.dtype  # a copy of text of no length has another one
    order = "C"
    if not array.flags.c_contiguous:
        if array.flags.f_contiguous:
            order = "F"
        else:
            array = numpy.ascontiguousarray(array)
    head = head_of(array.shape, dtype, order)
    return OBJECT, [memoryview(head), bytes_of(array)], len(head) + array.nbytes


# --- receiving -----------------------------------------------------------------------------------


def array_of(message: Message) -> Array:
    """The array of a message that is one, and whole."""
    layout = checked(message)
    buffer = message.buffers[0]
    if isinstance(buffer, numpy.ndarray):
        return buffer
    # (NumPy makes no array of nothing over an empty buffer.)
    return layout.over(buffer) if layout.size else layout.empty()


def checked(message: Any) -> Layout:
    """The layout of a message that has to be an array.  Errors as ``layout_of``."""
    if not isinstance(message, Message):
        raise not_an_array()
    sizes = message.sizes()
    return layout_of(message.pickle, sizes[0] if len(sizes) == 1 else None)


def receive(
    receiver: Receiver, out: Array | None, deadline: float | None, slept: bool = False
) -> Array:
    """The next message, which has to be an array, in new memory, or in ``out``.

    EOFError, TimeoutError as ``Receiver.receive``.  TypeError, ValueError: it is something else, or
    does not fit ``out``; it stays.
    """
    # As an array and nothing else: a matrix, say, does not become flat.
    given, out = out, None if out is None else _checked_out(out)

    def only(message: Any) -> None:
        layout = checked(message)
        if out is not None:
            layout.check(out)

    side = receiver.side
    make = partial(ArrayMessage, out=out)
    taker = Receiver(side, receiver.locks, receiver.keeper, make, only)
    try:
        array = array_of(taker.receive(None, deadline, None, slept))
    except (TypeError, ValueError):
        side.pass_on(True, False)  # the message stays, and the wake for it may have come here
        raise
    if out is None:
        return array
    if array is not out:
        out[...] = array
    return given  # type: ignore[return-value]


def _checked_out(out: Any) -> Array:
    if not isinstance(out, numpy.ndarray):
        raise TypeError(f"out must be a NumPy array, not {type(out).__name__}")
    if not out.flags.writeable:
        raise ValueError("out is read-only")
    if isinstance(out, numpy.ma.MaskedArray):
        raise TypeError("out is a masked array, which is two: receive into its data")
    return out.view(numpy.ndarray)


class ArrayMessage(Message):
    """A message of which an array is made, or nothing: its items go where they belong at once.

    Refused, or left before that has been decided, it is an ordinary message from then on.
    """

    def __init__(self, size: int, out: Array | None = None) -> None:
        super().__init__(size)
        self._out = out
        self._numbers: tuple[int, ...] = ()
        self._ordinary = False
        self._items: _Items | None = None

    @property
    def borrows(self) -> bool:  # type: ignore[override]
        items = self._items
        own = items is not None and items.array is not None and items.array is not self._out
        return not self._ordinary and not own

    def moved(self) -> Message:
        items = self._items
        if items is None or items.array is None:
            self._become_ordinary()
        else:
            items.fill(items.array.copy(order="K"))
        return self

    def room(self, size: int, readonly: bool) -> Any:
        if self._ordinary:
            return super().room(size, readonly)
        self._items = _Items(self)
        return self._items

    def _lay_out(self, numbers: tuple[int, ...]) -> None:
        self._numbers = numbers
        super()._lay_out(numbers)

    def _become_ordinary(self) -> None:
        self._ordinary, self._out, self._items = True, None, None
        if self._numbers:
            pickled = self.pickle
            self._lay_out(self._numbers)
            self.pickle[:] = pickled

    def open(self) -> Array:
        """The array for the items, now that the description is there."""
        try:
            layout, out = checked(self), self._out
            if out is not None:
                layout.check(out)
                if out.flags.f_contiguous if layout.order == "F" else out.flags.c_contiguous:
                    return out
            return layout.empty()
        except (TypeError, ValueError):
            self._become_ordinary()
            raise

    def whole(self) -> Message:
        super().whole()
        if not self._ordinary:
            checked(self)
            assert self._items is not None  # a message that is an array has one buffer
            self.buffers = [self._items.finished()]
        return self


class _Items:
    """Where the bytes of an array go, which is known only when the first of them come."""

    def __init__(self, message: ArrayMessage) -> None:
        self._message = weakref.proxy(message)  # no cycle, which would keep large memory for long
        self.array: Array | None = None
        self._view: memoryview | None = None

    def __setitem__(self, where: slice, piece: memoryview) -> None:
        if self._view is None:
            self.fill(self._message.open())
        assert self._view is not None
        self._view[where] = piece

    def fill(self, array: Array) -> None:
        self.array, self._view = array, bytes_of(array)

    def finished(self) -> Array:
        if self.array is None:  # there are no bytes
            self.fill(self._message.open())
        assert self.array is not None
        return self.array


# --- lending -------------------------------------------------------------------------------------


class _ArrayBlock:
    """What both loans of arrays do on entering and leaving.

    An array cannot be released as a memoryview can, and the variable of the ``with`` statement
    still has it when the block has ended.  So that is told from what must not stay, as slices,
    tensors, attributes: if all references are of local variables of functions that are running,
    the array is made an empty one, and then has no more of the ring than a released view has.
    Otherwise it stays as it is, and counts as kept (see ``lending``).
    """

    _array: Array | None = None
    _idle = 0  # references to the array that are our own

    def __enter__(self) -> Any:
        super().__enter__()  # type: ignore[misc]
        self._idle = self._references()
        return self._array

    def _references(self) -> int:
        return sys.getrefcount(self._array)

    def _take_back(self, view: memoryview) -> bool:
        # (No variable of ours may be the array: it would be counted.)
        kept = self._references() > self._idle and self._references() > self._idle + self._names()
        if not kept and self._array is not None:
            state: Any = 1, (0,), self._array.dtype, False, b""
            self._array.__setstate__(state)
        self._array = None
        return bool(super()._take_back(view)) or kept  # type: ignore[misc]

    def _names(self) -> int:
        """How many variables of running functions are the array."""
        count = 0
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            count += variables.count(frame, self._array)
            frame = frame.f_back
        return count


class LentArray(_ArrayBlock, Received):
    """``recv_array_view()``."""

    _kind = OBJECT

    def _begin(self) -> Any:
        view = super()._begin()
        if self._array is None:
            try:
                layout, at = found_in(view)
                self._array = _over(layout, view, at)
            except BaseException:
                view.release()
                self._part.side.pass_on(True, False)  # the message stays for somebody else
                raise
        return view

    def _copied(self) -> memoryview:
        self._array = receive(self._part, None, self._deadline, self._slept)
        self._array.setflags(write=False)
        return memoryview(b"")


class ReservedArray(_ArrayBlock, Reserved):
    """``reserve_array()``."""

    _kind = OBJECT

    def __init__(
        self,
        connection: object,
        sender: Sender,
        shape: Any,
        dtype: Any,
        order: str,
        deadline: float | None,
    ) -> None:
        if order not in ("C", "F"):
            raise ValueError(f"order is {order!r}: allowed are 'C' and 'F'")
        self._layout = layout = Layout(_checked_shape(shape), _checked_type(dtype), order)
        sender.check(layout.size)  # what is too large cannot even be described
        _check_dimensions(layout)
        self._head = head_of(layout.shape, layout.dtype, order)
        super().__init__(connection, sender, len(self._head) + layout.size, deadline)

    def _begin(self) -> Any:
        view = super()._begin()
        view[: len(self._head)] = self._head
        self._array = _over(self._layout, view, len(self._head))
        return view


def _checked_shape(shape: Any) -> tuple[int, ...]:
    try:
        lengths: tuple[int, ...] = (operator.index(shape),)
    except TypeError:
        try:
            lengths = tuple(map(operator.index, shape))
        except TypeError:
            why = f"shape must be an integer or a tuple of integers, not {shape!r}"
            raise TypeError(why) from None
    if min(lengths, default=0) < 0:
        raise ValueError(f"shape is {shape!r}: no length may be negative")
    return lengths


def _checked_type(dtype: Any) -> numpy.dtype[Any]:
    try:
        made: numpy.dtype[Any] = numpy.dtype(dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        why = f"dtype must be what numpy.dtype() makes a type of, not {dtype!r}: {error}"
        raise TypeError(why) from None
    if grows(made):
        raise TypeError(f"dtype is {dtype!r}, text of no length: say how long, as in 'S8' or 'U8'")
    return made


def _check_dimensions(layout: Layout) -> None:
    """That NumPy has arrays of so many, and, if one of them is 0, of such long other ones."""
    if layout.size and len(layout.shape) <= _SURELY_SO_MANY:
        return
    try:
        layout.empty()
    except ValueError as error:
        raise ValueError(f"there is no array of shape {layout.shape}: {error}") from None


def _over(layout: Layout, view: memoryview, at: int) -> Array:
    if not layout.size:
        array = layout.empty()
        array.setflags(write=not view.readonly)
        return array
    return layout.over(view[at:])
