//! How far a command has come, on stderr: a bar on a terminal, a line now and
//! then elsewhere, nothing if `--quiet`.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Time between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Progress of one command.
pub enum Bar {
    /// Nothing is shown.
    Silent,
    /// A bar that moves.
    Drawn(ProgressBar),
    /// A line now and then.
    Lines {
        /// When the last line was written.
        last: Instant,
    },
}

impl Bar {
    /// What suits this terminal.
    pub fn new(quiet: bool) -> Self {
        if quiet {
            return Bar::Silent;
        }
        if !std::io::stderr().is_terminal() {
            return Bar::Lines { last: Instant::now() };
        }
        let style =
            ProgressStyle::with_template("{bar:40} {percent:>3}% {elapsed} eta {eta} {msg}");
        let bar = ProgressBar::new(0);
        // The template is a constant; if it were wrong the bar would look plain.
        if let Ok(style) = style {
            bar.set_style(style);
        }
        Bar::Drawn(bar)
    }

    /// `done` of `total` steps are done.
    pub fn set(&mut self, done: usize, total: usize, message: &str) {
        match self {
            Bar::Silent => {}
            Bar::Drawn(bar) => {
                bar.set_length(total as u64);
                bar.set_position(done as u64);
                bar.set_message(message.to_string());
            }
            Bar::Lines { last } if last.elapsed() >= LINE_EVERY => {
                *last = Instant::now();
                eprintln!("{:3}%  {message}", 100 * done / total.max(1));
            }
            Bar::Lines { .. } => {}
        }
    }

    /// Clears the bar.
    pub fn finish(self) {
        if let Bar::Drawn(bar) = self {
            bar.finish_and_clear();
        }
    }
}
