//! `openwork completions SHELL`.

use crate::failure::Failure;

/// Print a shell completion script
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  openwork completions bash > ~/.local/share/bash-completion/completions/openwork
  openwork completions zsh > ~/.zfunc/_openwork
  openwork completions fish > ~/.config/fish/completions/openwork.fish")]
pub struct Completions {
    /// Shell to generate the script for
    shell: clap_complete::Shell,
}

impl Completions {
    /// Prints the script.
    pub fn run(self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut crate::args::command(), "openwork", &mut script);
        crate::print::text(&String::from_utf8_lossy(&script))
    }
}
