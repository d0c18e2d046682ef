//! Results on stdout. A reader that has gone away (`openwork .. | head`) ends
//! the command quietly; any other write error is a failure.

use crate::failure::Failure;
use std::io::{ErrorKind, Write};

/// Writes `text` to stdout.
pub fn text(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::running(format!("cannot write to stdout: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// Writes `line` and a line end to stdout.
pub fn line(line: impl std::fmt::Display) -> Result<(), Failure> {
    text(&format!("{line}\n"))
}

/// Rows as aligned columns; `right` says which are aligned to the right.
pub fn columns<const N: usize>(rows: &[[String; N]], right: [bool; N]) -> String {
    let width: [usize; N] = std::array::from_fn(|column| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)
    });
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let pad = " ".repeat(width[column] - cell.chars().count());
            let (left, after) =
                if right[column] { (pad, String::new()) } else { (String::new(), pad) };
            line += &format!("{left}{cell}{after}  ");
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Bytes in a unit that leaves at most four digits before the point.
pub fn size(bytes: u64) -> String {
    const UNITS: &[(u64, &str)] = &[(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some(&(unit, name)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}
