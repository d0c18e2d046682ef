//! Results on stdout. A reader that has gone away (`openwork .. | head`) ends
//! the command quietly; any other write error is a failure. Notes on stderr.

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

/// Writes a line to stderr; what cannot be said there changes nothing.
pub fn aside(line: impl std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "{line}");
}
