//! Detection and configuration of the matrix unit.

use std::arch::asm;
use std::marker::PhantomData;
use std::sync::OnceLock;

/// Whether this process may use the unit: the processor has it, the kernel permits it, and
/// `OPENWORK_AMX` is not 0.
pub fn available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| wanted() && present() && allowed())
}

/// False if `OPENWORK_AMX=0`, which gives the results of a machine without the unit.
fn wanted() -> bool {
    std::env::var_os("OPENWORK_AMX").is_none_or(|value| value != "0")
}

/// Whether the processor has the unit with bf16, and the instructions that pack for it.
fn present() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512bf16")
        && raw_cpuid::CpuId::new()
            .get_extended_feature_info()
            .is_some_and(|features| features.has_amx_tile() && features.has_amx_bf16())
}

/// Requests the permission to use tile registers for all threads of the process. Linux has
/// the call since 5.16, and without the permission tile instructions fault.
#[cfg(target_os = "linux")]
fn allowed() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const XFEATURE_XTILEDATA: i64 = 18;
    let answer: i64;
    // SAFETY: the call takes two numbers and accesses no memory of the process; a kernel
    // without it returns an error.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => answer,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer == 0
}

#[cfg(not(target_os = "linux"))]
fn allowed() -> bool {
    false
}

/// Configures eight tiles of 16 rows of 64 bytes on this thread until dropped.
pub struct Configured(PhantomData<*const ()>);

/// The layout that `ldtilecfg` reads.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Configured {
    /// Configures the unit.
    ///
    /// # Panics
    ///
    /// If this machine has none.
    pub fn new() -> Self {
        assert!(available(), "no matrix unit");
        let mut config = Config {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        config.row_bytes[..8].fill(64);
        config.rows[..8].fill(16);
        // SAFETY: the unit is available, and reads the 64 bytes of `config`.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(readonly, nostack)) };
        Self(PhantomData)
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // SAFETY: the unit is available, and its registers are no longer needed.
        unsafe { asm!("tilerelease", options(nomem, nostack)) };
    }
}
