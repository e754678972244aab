"""Reads a pickle that is data only; what would import, call or build anything is refused, and nothing of it runs.

Python's own unpicklers are no choice for files that somebody else wrote: they reserve memory for sizes and memo numbers
that a few bytes claim. This reader knows the opcodes that torch's C++ pickler (protocol 2) and Python's write for None,
numbers, texts, lists, tuples and dictionaries, and no other.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

MAX_OPCODES = 4_000_000
_MAX_MARKS = 256
_MAX_MEMO = 1_000_000


class NotPlainError(ValueError):
    """The bytes are no pickle of plain data; the message says why."""


class _Mark:
    """Where a list, tuple or dictionary begins on the stack."""


_MARK = _Mark()
_CONSTANTS = {ord("N"): None, 0x88: True, 0x89: False, ord(")"): ()}
_NUMBERS = {  # opcode -> its operand
    ord("J"): struct.Struct("<i"),
    ord("K"): struct.Struct("<B"),
    ord("M"): struct.Struct("<H"),
    ord("G"): struct.Struct(">d"),
}
_TEXTS = {  # opcode -> the length before the bytes
    0x8C: struct.Struct("<B"),
    ord("X"): struct.Struct("<I"),
    0x8D: struct.Struct("<Q"),
}
_MEMO = {  # opcode -> (number of the memo, whether it is read)
    ord("q"): (struct.Struct("<B"), False),
    ord("r"): (struct.Struct("<I"), False),
    ord("h"): (struct.Struct("<B"), True),
    ord("j"): (struct.Struct("<I"), True),
}


def loads(data: bytes) -> Any:
    """Return what a pickle holds. Raises NotPlainError for anything but plain data, and beyond the bounds."""
    try:
        return _Machine(data).run()
    except (struct.error, IndexError):
        raise NotPlainError("it breaks off or is damaged") from None


class _Machine:
    """The pickle machine's stack and memo, for opcodes that make plain data."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._marks = 0

    def run(self) -> Any:
        data, stack, memo, constants = self._data, self._stack, self._memo, _CONSTANTS
        handlers = self._handlers()
        for _ in range(MAX_OPCODES):
            code = data[self._at]
            self._at += 1
            # What dumps are mostly made of comes first, without a call.
            if code == 0x68:  # BINGET
                number = data[self._at]
                self._at += 1
                if number not in memo:
                    raise NotPlainError("it is damaged")
                stack.append(memo[number])
            elif code == 0x4B:  # BININT1
                stack.append(data[self._at])
                self._at += 1
            elif code in constants:
                stack.append(constants[code])
            elif code == 0x2E:  # STOP
                if len(stack) != 1 or stack[0] is _MARK:
                    raise NotPlainError("it is damaged")
                return stack[0]
            elif (handler := handlers.get(code)) is not None:
                handler()
            else:
                raise NotPlainError(f"it holds more than plain data (opcode {code:#04x} at byte {self._at - 1})")
        raise NotPlainError(f"it has more than {MAX_OPCODES} opcodes")

    def _handlers(self) -> dict[int, Callable[[], None]]:
        found: dict[int, Callable[[], None]] = {
            0x80: lambda: self._skip(1),  # PROTO
            0x95: lambda: self._skip(8),  # FRAME
            ord("("): self._mark,
            ord("]"): lambda: self._stack.append([]),
            ord("}"): lambda: self._stack.append({}),
            ord("a"): lambda: self._extend([self._stack.pop()]),
            ord("e"): lambda: self._extend(self._since_mark()),
            ord("s"): lambda: self._update([self._stack.pop(-2), self._stack.pop()]),
            ord("u"): lambda: self._update(self._since_mark()),
            ord("t"): lambda: self._stack.append(tuple(self._since_mark())),
            0x94: lambda: self._remember(len(self._memo)),  # MEMOIZE
            0x8A: self._long,
        }
        for count, code in enumerate((0x85, 0x86, 0x87), start=1):
            found[code] = lambda count=count: self._tuple(count)  # type: ignore[misc]
        for code, form in _NUMBERS.items():
            found[code] = lambda form=form: self._stack.append(self._number(form))  # type: ignore[misc]
        for code, form in _TEXTS.items():
            found[code] = lambda form=form: self._stack.append(  # type: ignore[misc]
                self._take(self._number(form)).decode("utf-8", "replace")
            )
        for code, (form, read) in _MEMO.items():
            use = self._recall if read else self._remember
            found[code] = lambda form=form, use=use: use(self._number(form))  # type: ignore[misc]
        return found

    def _skip(self, count: int) -> None:
        self._at += count

    def _take(self, count: int) -> bytes:
        end = self._at + count
        if end > len(self._data):
            raise NotPlainError("it breaks off")
        found = self._data[self._at : end]
        self._at = end
        return found

    def _number(self, form: struct.Struct) -> Any:
        value = form.unpack_from(self._data, self._at)[0]
        self._at += form.size
        return value

    def _long(self) -> None:
        count = self._data[self._at]
        self._at += 1
        self._stack.append(int.from_bytes(self._take(count), "little", signed=True))

    def _mark(self) -> None:
        self._marks += 1
        if self._marks > _MAX_MARKS:
            raise NotPlainError("it is nested too deeply")
        self._stack.append(_MARK)

    def _since_mark(self) -> list[Any]:
        stack = self._stack
        at = len(stack) - 1
        while stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise NotPlainError("it is damaged")
        found = stack[at + 1 :]
        del stack[at:]
        self._marks -= 1
        return found

    def _tuple(self, count: int) -> None:
        stack = self._stack
        found = tuple(stack[-count:])
        if len(found) < count or _MARK in found:
            raise NotPlainError("it is damaged")
        stack[-count:] = [found]

    def _extend(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, list) or _MARK in items:
            raise NotPlainError("it is damaged")
        target.extend(items)

    def _update(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise NotPlainError("it is damaged")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # The hash of a deeply nested tuple would take the C stack with it.
            if not isinstance(key, (str, int)) or value is _MARK:
                raise NotPlainError("it is no plain data")
            target[key] = value

    def _remember(self, number: int) -> None:
        if len(self._memo) >= _MAX_MEMO:
            raise NotPlainError("it remembers too much")
        self._memo[number] = self._stack[-1]

    def _recall(self, number: int) -> None:
        try:
            self._stack.append(self._memo[number])
        except KeyError:
            raise NotPlainError("it is damaged") from None
