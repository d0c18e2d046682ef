//! Ctrl-C: prints how to resume a run, then ends the process as usual.

use openwork_llm::format::shell_word;

/// From now on an interrupt prints `message` on stderr before it ends the
/// process. The files of a run are whole at every moment, so nothing else needs
/// to happen.
#[cfg(unix)]
pub fn say_on_interrupt(message: &str) {
    use std::sync::OnceLock;
    static MESSAGE: OnceLock<Vec<u8>> = OnceLock::new();

    extern "C" fn interrupted(signal: libc::c_int) {
        // Only calls that POSIX allows in a signal handler. `OnceLock::get` of a
        // value that was set before the handler is an atomic load.
        let message = MESSAGE.get().map_or(&[][..], Vec::as_slice);
        // SAFETY: the pointer and the length are those of a live slice; `write`
        // and `raise` are async-signal-safe. The handler was reset to the
        // default when it was entered (SA_RESETHAND), so that raising ends the
        // process with the status that shells expect.
        unsafe {
            libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len());
            libc::raise(signal);
        }
    }

    if MESSAGE.set(message.as_bytes().to_vec()).is_err() {
        return;
    }
    // SAFETY: all-zero is a valid `sigaction`; the handler has the type that the
    // field asks for without SA_SIGINFO, and lives as long as the program.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = interrupted as extern "C" fn(libc::c_int) as libc::sighandler_t;
        action.sa_flags = libc::SA_RESETHAND;
        libc::sigaction(libc::SIGINT, &action, std::ptr::null_mut());
    }
}

/// Elsewhere an interrupt ends the process without a message.
#[cfg(not(unix))]
pub fn say_on_interrupt(_message: &str) {}

/// The command line of this process with `--resume`, to be typed in a shell.
pub fn resume_command() -> String {
    command(std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()))
}

fn command(args: impl Iterator<Item = String>) -> String {
    let mut words: Vec<String> = args
        .filter(|arg| arg != "--force" && arg != "--resume")
        .map(|arg| shell_word(&arg))
        .collect();
    words.push("--resume".to_string());
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_reads_back_as_it_was_with_resume_in_place_of_force() {
        let args = ["openwork", "prune", "my model", "--spec", "mlp keep 75%", "--force", "it's"];
        assert_eq!(
            command(args.into_iter().map(String::from)),
            r"openwork prune 'my model' --spec 'mlp keep 75%' 'it'\''s' --resume"
        );
    }
}
