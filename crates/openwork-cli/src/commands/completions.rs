//! `openwork completions SHELL`.

use crate::failure::Failure;
use clap::CommandFactory;

/// `openwork completions bash > /etc/bash_completion.d/openwork`
#[derive(Debug, clap::Args)]
pub struct Completions {
    /// The shell to write for
    shell: clap_complete::Shell,
}

impl Completions {
    /// Prints the script.
    pub fn run(self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(
            self.shell,
            &mut crate::args::Args::command(),
            "openwork",
            &mut script,
        );
        crate::print::text(&String::from_utf8_lossy(&script))
    }
}
