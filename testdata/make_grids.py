"""Writes crates/openwork-llm/src/checkpoint/grids.rs: the code books of the GGUF types
IQ2_XXS and IQ3_XXS, which are part of the file format, from the `gguf` package (MIT
licence, gguf/quants.py, where each entry is packed in 16 bits).

    pip install gguf
    python testdata/make_grids.py
"""

from pathlib import Path

from gguf.quants import IQ2_XXS, IQ3_XXS

OUT = Path(__file__).parent.parent / "crates/openwork-llm/src/checkpoint/grids.rs"

HEAD = """//! Code books of ggml's IQ types: which combinations of magnitudes a code stands for.
//! Facts of the file format, written by `testdata/make_grids.py` from the `gguf` package.

"""


def table(name, kind, width, doc):
    packed = bytes.fromhex(kind.grid_hex.decode())
    entries = [int.from_bytes(packed[i : i + 2], "little") for i in range(0, len(packed), 2)]
    assert len(entries) == 256 and kind.grid_shape[1] * width == 16
    values = ", ".join(str(value) for value in kind.grid_map)
    lines = ["    " + ", ".join(f"0x{e:04x}" for e in entries[i : i + 8]) + "," for i in range(0, 256, 8)]
    return (
        f"/// The magnitudes of {name}.\n"
        f"pub(super) const {name}_VALUES: [u8; {len(kind.grid_map)}] = [{values}];\n\n"
        f"/// {doc}\n"
        f"#[rustfmt::skip]\npub(super) const {name}: [u16; 256] = [\n" + "\n".join(lines) + "\n];\n"
    )


OUT.write_text(
    HEAD
    + table("IQ2_XXS", IQ2_XXS, 2, "Eight indices of 2 bits per code, lowest first.")
    + "\n"
    + table("IQ3_XXS", IQ3_XXS, 4, "Four indices of 4 bits per code, lowest first.")
)
