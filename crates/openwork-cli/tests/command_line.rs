//! The command line as a whole: help, hints, exit codes, and what reaches the
//! terminal.

mod common;

use common::{Folder, f32s, noise};

#[test]
fn the_help_lists_every_command_once_and_the_exit_codes() {
    let folder = Folder::new();
    let help = folder.run("help");
    assert_eq!(help.code, 0);
    let listed = |name: &str| {
        help.out.lines().filter(|line| line.split_whitespace().next() == Some(name)).count()
    };
    let completions = folder.run("completions bash").out;
    let names = completions.lines().filter_map(|line| {
        line.trim().strip_prefix("openwork,").and_then(|name| name.strip_suffix(')'))
    });
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        assert_eq!(listed(name), 1, "{name}\n{}", help.out);
    }
    for part in ["Exit codes:", "  0  success", "  1  failed while running", "  2  wrong input"] {
        assert!(help.out.contains(part), "{part}\n{}", help.out);
    }
    for command in ["eval", "prune", "show", "layout"] {
        let help = folder.run(&format!("{command} --help")).out;
        let (_, globals) = help.split_once("Global options:").expect(command);
        for option in ["--json", "--quiet", "--threads"] {
            assert!(globals.contains(option), "{command} {option}");
        }
    }
}

#[test]
fn every_output_has_a_short_name() {
    let folder = Folder::new();
    let help = folder.run("help").out;
    let commands = help.lines().filter_map(|line| line.strip_prefix("  ")?.split_once("  "));
    let mut outputs = 0;
    for (command, _) in commands.filter(|(name, _)| name.chars().all(char::is_alphanumeric)) {
        let help = folder.run(&format!("{command} --help")).out;
        let mut options = help.lines().filter(|line| line.trim_start().starts_with('-'));
        let long = options.find(|line| line.contains("--out <"));
        assert!(long.is_none_or(|line| line.contains("-o, --out")), "{command}: {long:?}");
        outputs += usize::from(long.is_some());
    }
    assert!(outputs >= 8, "{help}");
}

#[test]
fn options_of_other_tools_get_the_option_to_use() {
    let folder = Folder::new();
    let prune = "prune m --spec 2:4 --calib demo --out out";
    for (args, hint) in [
        (format!("{prune} --ignore lm_head"), "--exclude RE"),
        (format!("{prune} --dataset c4"), "--calib TEXT"),
        (format!("{prune} --cache_dir x"), "org/name@revision"),
        (format!("{prune} --percdamp .01"), "damping=mean:0.01"),
        (format!("{prune} --prunen 2 --prunem 4"), "--spec 2:4"),
        ("eval demo --text demo -p x".to_string(), "takes a prompt"),
        ("eval demo --text demo --seq_len 64".to_string(), "--seq-len"),
    ] {
        let said = folder.run(&args);
        assert_eq!(said.code, 2, "{args}");
        assert!(said.err.starts_with("error: ") && said.err.contains(hint), "{args}\n{}", said.err);
        assert!(!said.err.contains("--force"), "{args}\n{}", said.err);
    }
    let said = folder.run(&format!("{prune} --wholly-unknown"));
    assert!(!said.err.contains("tip:"), "{}", said.err);
}

/// Names in files and arguments are shown without acting on the terminal.
#[test]
fn no_control_character_reaches_the_terminal() {
    const EVIL: &str = "a\u{1b}[31m\u{9b}2J\u{7}\rb\u{202e}c";
    let folder = Folder::new();
    folder.file("w.safetensors", &[f32s(EVIL, &[4, 8], &noise(32, 1))]);
    let place = format!("w.safetensors:{EVIL}");
    let shape = format!("{EVIL}=8,8");
    let out = format!("{EVIL}.safetensors");
    for args in [
        &["inspect", "w.safetensors"][..],
        &["inspect", "w.safetensors", "--json"],
        &["inspect", "w.safetensors", "--spec", "2:4"],
        &["inspect", EVIL],
        &["tensor", "w.safetensors", "--spec", "2:4", "--method", "magnitude"],
        &["tensor", "w.safetensors", "--spec", "2:4", "--method", "magnitude", "--json"],
        &["tensor", "w.safetensors", "--spec", "2:4", "--method", "magnitude", "--out", &out],
        &["tensor", &place, "--spec", "2:4", "--method", EVIL],
        &["tensor", "w.safetensors:x", "--spec", "2:4", "--method", "magnitude"],
        &["tensor", EVIL, "--spec", EVIL, "--method", "magnitude"],
        &["hessian", "w.safetensors", "--out", "h.safetensors"],
        &["show", EVIL, "--shape", "8,8"],
        &["show", "2:4", "--shape", &shape],
        &["show", "2:4", "--shape", EVIL],
        &["layout", EVIL, "4"],
        &["eval", EVIL, "--text", EVIL],
        &["generate", EVIL, EVIL],
        &["prune", EVIL, "--spec", EVIL, "--calib", EVIL, "--out", "o"],
        &["report", EVIL],
        &[EVIL],
        &["show", "2:4", EVIL],
        &["inspect", "m", "--\u{1b}[31m"],
    ] {
        let said = folder.run_list(args);
        let steers = |c: char| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}';
        for text in [&said.out, &said.err] {
            assert!(!text.contains(steers), "{args:?}: {text:?}");
        }
    }
    let page = folder.run("inspect w.safetensors").out;
    assert!(page.contains("31m"), "{page}");
}
