"""Compile a kernel without a GPU, and read what became of it from its machine code."""

import hashlib
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MIX = {
    "wgmma": r"[HIQ]GMMA",
    "mma": r"[HIDQ]MMA",
    "tma": r"UTMA\w+|UBLKCP",
    "ldg": "LDG|LDGSTS",
    "stg": "STG|REDG?|ATOMG?",
    "lds": "LDSM?",
    "sts": "STSM?",
    "spill": "LDL|STL",
    "exp": r"MUFU\.EX2",
    "bar": "BAR|SYNCS|WARPSYNC|DEPBAR",
}
"""Kinds of instructions and their mnemonics; a dot in a pattern takes the mnemonic with its modifiers."""

_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)[^;]*;", re.M)
_LINE = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/.*$|^\s+/\* 0x[0-9a-f]{16} \*/$", re.M)


@dataclass(frozen=True)
class Compiled:
    """The machine code of a kernel."""

    sass: str
    """Digest of its instructions with their encoding, without the kernel's name."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    instructions: int
    mix: dict[str, int]
    """Number of instructions of each kind in `MIX`."""


def compiled(source: Any, target: Any, options: dict[str, Any]) -> Compiled:
    """Compile with Triton and ptxas, and disassemble. Raises what they raise."""
    from triton import knobs
    from triton.compiler.compiler import compile as compile_with_triton

    kernel = compile_with_triton(source, target=target, options=options)
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(kernel.asm["cubin"])
        usage = _said(knobs.nvidia.cuobjdump.path, "-res-usage", cubin)
        sass = _said(knobs.nvidia.cuobjdump.path, "-sass", cubin)
    registers, stack = map(int, re.findall(r"REG:(\d+) STACK:(\d+)", usage)[-1])
    return of_sass(sass, registers, stack, int(kernel.metadata.shared))


def of_sass(sass: str, registers: int, stack_bytes: int, shared_bytes: int) -> Compiled:
    """Read the disassembly: which instructions, and how many of each kind."""
    mnemonics = Counter(_INSTRUCTION.findall(sass))
    mix = {
        kind: sum(
            count
            for mnemonic, count in mnemonics.items()
            if re.match(rf"(?:{pattern})(?![\w])", mnemonic if r"\." in pattern else mnemonic.partition(".")[0])
        )
        for kind, pattern in MIX.items()
    }
    code = "\n".join(_LINE.findall(sass))
    digest = hashlib.sha256(code.encode()).hexdigest()[:16]
    return Compiled(digest, registers, stack_bytes, shared_bytes, mnemonics.total(), mix)


def _said(*command: Any) -> str:
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True).stdout
