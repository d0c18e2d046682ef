//! Progress on stderr: a bar on a terminal, lines elsewhere, nothing if quiet.

use crate::args::Global;
use crate::print;
use indicatif::{ProgressBar, ProgressStyle};
use openwork::prune::Monitor;
use openwork_llm::format::format_bytes;
use std::io::IsTerminal;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How often a line is printed where there is no terminal.
const EVERY: Duration = Duration::from_secs(5);

/// Steps of a bar: thousandths of a stage.
const STEPS: f64 = 1000.0;

/// Bytes of a text that takes the tokenizer seconds.
const LONG_TEXT: u64 = 1 << 20;

/// One stage of work that is looked at from outside.
pub struct Progress {
    how: How,
}

enum How {
    Silent,
    Bar(ProgressBar),
    Lines { title: String, last: Mutex<Instant> },
}

impl Progress {
    /// Starts a stage.
    pub fn start(global: &Global, title: &str) -> Self {
        let title = &print::escaped(title);
        let how = if global.quiet {
            How::Silent
        } else if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new(STEPS as u64).with_message(title.to_string());
            if let Ok(style) =
                ProgressStyle::with_template("{msg} {bar:30} {percent:>3}% {elapsed}")
            {
                bar.set_style(style);
            }
            How::Bar(bar)
        } else {
            How::Lines { title: title.to_string(), last: Mutex::new(Instant::now()) }
        };
        Self { how }
    }

    /// `share` of the stage is done, and there is something to say about it.
    pub fn say(&self, share: f64, message: &str) {
        match &self.how {
            How::Silent => {}
            How::Bar(bar) => {
                bar.set_position((share.clamp(0.0, 1.0) * STEPS) as u64);
                bar.set_message(message.to_string());
            }
            How::Lines { last, .. } => line(last, share, message),
        }
    }

    /// Names a stage whose progress is not known, such as a call into a library:
    /// a bar shows the elapsed time, and elsewhere a line is printed at once.
    pub fn announce(&self, message: &str) {
        match &self.how {
            How::Silent => {}
            How::Bar(bar) => {
                bar.set_message(message.to_string());
                bar.enable_steady_tick(Duration::from_millis(200));
            }
            How::Lines { .. } => print::aside(message),
        }
    }

    /// Announces that a text is tokenized, if that takes a while.
    pub fn announce_tokenizing(&self, bytes: u64) {
        if bytes > LONG_TEXT {
            self.announce(&format!("tokenizing {} of text", format_bytes(bytes)));
        }
    }

    /// Ends the stage; a bar goes away.
    pub fn end(self) {
        if let How::Bar(bar) = self.how {
            bar.finish_and_clear();
        }
    }
}

impl Monitor for Progress {
    fn progress(&self, share: f64) {
        match &self.how {
            How::Silent => {}
            How::Bar(bar) => bar.set_position((share.clamp(0.0, 1.0) * STEPS) as u64),
            How::Lines { title, last } => line(last, share, title),
        }
    }
}

/// Prints a line if the last one is some time ago. A thread that finds another
/// one printing has nothing to add.
fn line(last: &Mutex<Instant>, share: f64, text: &str) {
    if let Ok(mut last) = last.try_lock()
        && last.elapsed() >= EVERY
    {
        *last = Instant::now();
        print::aside(format!("{text}: {:.0} %", 100.0 * share));
    }
}
