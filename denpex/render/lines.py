"""The lines of a report: labelled passages, rows and commands, each within the width, coloured or not."""

from __future__ import annotations

from collections.abc import Iterable

from denpex.render.text import safe, split, width_of, wrap

LABEL = 10
_STYLES = {"bad": "\x1b[1;31m", "good": "\x1b[1;32m", "dim": "\x1b[2m", "label": "\x1b[1m"}
_END = "\x1b[0m"


class Lines:
    """What has been written so far; all text is escaped here, so that a job's words cannot steer the terminal."""

    def __init__(self, color: bool, width: int) -> None:
        self.width = max(40, width)
        self._color = color
        self._lines: list[str] = []
        self._last = ""

    def text(self) -> str:
        """Return everything."""
        return "\n".join(self._lines).rstrip("\n")

    def paint(self, text: str, style: str) -> str:
        """Return a text in a style of this module's table, where colours are wanted."""
        return f"{_STYLES[style]}{text}{_END}" if self._color and text else text

    def space(self) -> None:
        """Leave one line empty."""
        if self._lines and self._lines[-1]:
            self._lines.append("")
        self._last = ""

    def add(self, text: str, style: str) -> None:
        """Write a paragraph from the left edge."""
        self._lines += [self.paint(line, style) for line in wrap(text, self.width)]

    def section(self, label: str, text: str) -> None:
        """Write a paragraph beside a label, which is not repeated by the next one of the same label."""
        shown = self._shown(label)
        first, *rest = wrap(text, self.width, " " * LABEL, shown.ljust(LABEL))
        self._lines += [self.paint(first[: len(shown)], "label") + first[len(shown) :], *rest]

    def items(self, label: str, texts: Iterable[str]) -> None:
        """Write short texts beside a label, separated by commas, none broken where it fits a line."""
        line = ""
        for text in texts:
            longer = f"{line}, {text}" if line else text
            if line and width_of(safe(longer)) > self.width - LABEL - 1:
                self.section(label, line + ",")
                longer = text
            line = longer
        self.section(label, line)

    def row(self, text: str, style: str = "") -> None:
        """Write one line as it is, two columns in, cut where it is too long."""
        line = split("  " + safe(text).replace("\t", " ").replace("\n", " "), self.width)[0]
        self._lines.append(self.paint(line, style) if style else line)

    def command(self, label: str, text: str) -> None:
        """Write shell commands beside a label so that a copy of the lines still runs."""
        for line in text.splitlines():
            shown = self._shown(label)
            first, *rest = _continued(line, self.width - LABEL)
            self._lines.append(self.paint(shown, "label") + " " * (LABEL - len(shown)) + first)
            self._lines += [" " * LABEL + piece for piece in rest]

    def _shown(self, label: str) -> str:
        shown = "" if label == self._last else label
        self._last = label
        return shown


def _continued(command: str, width: int) -> list[str]:
    """Break a command at spaces outside quotes, with the shell's backslash at the end of each line but the last.

    A word that no line holds is not broken, nor a character escaped: half a path, pasted, is another command. The
    text then says where the command stands.
    """
    if not command.isprintable():
        return ["(not printable: see --json)"]
    if width_of(command) <= width:
        return [command]
    lines, line = [], ""
    for word in _words(command):
        longer = f"{line} {word}" if line else word
        if line and width_of(longer) > width - 2:
            lines.append(line + " \\")
            longer = "    " + word
        line = longer
    lines.append(line)
    if any(width_of(line) > width for line in lines):
        return ["(too long: see --json)"]
    return lines


def _words(command: str) -> list[str]:
    """Split at spaces that no quotes hold."""
    words, word, quote, skip = [], "", "", False
    for c in command:
        if skip:
            skip = False
        elif c == "\\" and quote != "'":
            skip = True
        elif quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        elif c == " ":
            if word:
                words.append(word)
            word = ""
            continue
        word += c
    return [*words, word] if word else words
