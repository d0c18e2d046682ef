//! What happens when memory runs out: a message and exit code 1 instead of an abort.

use std::alloc::{GlobalAlloc, Layout, System};

/// The system's allocator, which never returns null: a request that the system
/// refuses ends the process with a message.
pub struct ExitOnFailure;

// SAFETY: every call goes to `System` with the arguments it came with, and what
// `System` returns is returned unless it is null, in which case nothing returns.
unsafe impl GlobalAlloc for ExitOnFailure {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps `GlobalAlloc`'s promises.
        checked(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        checked(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        checked(unsafe { System.realloc(old, layout, size) }, size)
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(old, layout) }
    }
}

fn checked(found: *mut u8, size: usize) -> *mut u8 {
    if found.is_null() { fail(size) } else { found }
}

/// Says that `size` bytes could not be had, without asking for memory, and ends
/// the process.
#[cold]
fn fail(size: usize) -> ! {
    use std::io::Write;
    let mut text = [0u8; 512];
    let mut rest = &mut text[..];
    // Formatting a number into a slice allocates nothing; what does not fit is left out.
    let _ = writeln!(
        rest,
        "error: out of memory: {} MB more were refused; close other programs, raise the limit (ulimit -v), or give less work: fewer --samples, a shorter --seq-len, `prune --max-memory`",
        size.div_ceil(1_000_000)
    );
    let left = rest.len();
    end(&text[..text.len() - left])
}

/// Writes a message to stderr and leaves at once: exit handlers and locks may
/// need memory too.
#[cfg(unix)]
fn end(message: &[u8]) -> ! {
    // SAFETY: the pointer and the length are those of a live slice; `_exit`
    // takes any code and never returns.
    unsafe {
        libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len());
        libc::_exit(1)
    }
}

#[cfg(not(unix))]
fn end(message: &[u8]) -> ! {
    use std::io::Write;
    let _ = std::io::stderr().write_all(message);
    std::process::exit(1)
}
