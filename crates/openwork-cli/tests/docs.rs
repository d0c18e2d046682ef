//! The documentation is true: every command, recipe and help example runs, printed
//! output is what the command prints, and tables list what the code has.

mod common;
mod pages;

use openwork::prune::{DAMPING, METHODS, MODIFIERS, Method, MethodInfo, Needs, OptionInfo};
use pages::sandbox::Sandbox;
use pages::{Simple, blocks, logical_lines, mentions, shell};
use std::path::Path;

const START: &str = "<!-- methods:";
const END: &str = "<!-- end of methods -->";

fn row(name: &str, option: &OptionInfo, default: &str) -> String {
    let values = option.values.replace(" | ", "`, `");
    let values = if option.values.contains('|') { format!("`{values}`") } else { values };
    format!("| {name} | `{}` | {values} | {default} | {} |\n", option.name, option.help)
}

fn tables() -> String {
    let mut text = String::from("\n| method | what it does | damping |\n|---|---|---|\n");
    let named = |plus: &str, method: &MethodInfo| format!("`{plus}{}`", method.name);
    let all: Vec<(&str, &MethodInfo)> = METHODS
        .iter()
        .map(|method| ("", method))
        .chain(MODIFIERS.iter().map(|method| ("+", method)))
        .collect();
    for (plus, method) in &all {
        let (name, summary) = (named(plus, method), method.summary.replace('|', "\\|"));
        let damping = match method.name.parse::<Method>().map(|method| method.needs()) {
            Ok(Needs::Hessian) => format!("`{}`", method.damping),
            Ok(_) => "none".to_string(),
            // In force for the method that it follows, too.
            Err(_) => format!("`{}`", method.damping),
        };
        text += &format!("| {name} | {summary} | {damping} |\n");
    }
    text += "\n| of | option | values | default | what it does |\n|---|---|---|---|---|\n";
    text += &row("all", &DAMPING, "see above");
    for (plus, method) in &all {
        for option in method.options {
            text += &row(&named(plus, method), option, &format!("`{}`", option.default));
        }
    }
    text + "\n"
}

#[test]
fn the_methods_page_lists_every_method_and_option() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/methods.md");
    let page = std::fs::read_to_string(path).unwrap();
    let start = page.find(START).expect("the start mark");
    let start = start + page[start..].find('\n').expect("a line after it") + 1;
    let end = page.find(END).expect("the end mark");
    let right = format!("{}{}{}", &page[..start], tables(), &page[end..]);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(path, right).unwrap();
    } else {
        assert!(
            page == right,
            "docs/methods.md is old: UPDATE_DOCS=1 cargo test -p openwork-cli --test docs"
        );
    }
}

/// Commands that are not run here, by their first words, with the reason.
const NOT_RUN: &[(&str, &str)] = &[
    ("cargo", "builds what this test is a part of"),
    ("./test", "runs this test"),
    ("pip install", "needs the network"),
    ("ray start", "starts a service; python/tests/test_ray.py makes a cluster of its own"),
    ("python -m openwork.ray", "run by python/tests/test_docs.py"),
    ("openwork studio", "serves until it is interrupted; crates/openwork-studio/tests drive it"),
    (
        "python -m openwork.lm_eval",
        "needs lm-eval; python/tests/test_lm_eval.py runs it on a local task",
    ),
    ("openwork demo", "ten runs: minutes without optimization; its steps are run as commands"),
];

fn reason(command: &Simple) -> Option<&'static (&'static str, &'static str)> {
    let text = command.words.join(" ");
    NOT_RUN.iter().find(|(start, _)| text == *start || text.starts_with(&format!("{start} ")))
}

/// Runs the commands of a shell line; what failed.
fn run(sandbox: &mut Sandbox, place: &str, line: &str) -> Vec<String> {
    let commands = shell(line);
    let mut failures = Vec::new();
    for pipeline in commands.chunk_by(|_, next| next.piped) {
        if pipeline.iter().any(|command| reason(command).is_some()) {
            continue;
        }
        match sandbox.run(pipeline) {
            Some(output) if output.code == 0 => {}
            Some(output) => failures.push(format!("{place}: {line}\n{}{}", output.out, output.err)),
            None => {
                failures.push(format!("{place}: {line}\nnot run; mend it or list it in NOT_RUN"))
            }
        }
    }
    failures
}

fn assert_none(failures: &[String]) {
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_command_of_the_pages_runs() {
    let mut failures = Vec::new();
    let mut used = std::collections::BTreeSet::new();
    for (page, text) in pages::pages() {
        let mut sandbox = Sandbox::new();
        for block in blocks(&page, &text) {
            if !["sh", "bash", "shell", "console"].contains(&block.language.as_str()) {
                continue;
            }
            for line in logical_lines(&block.text) {
                let line = line.strip_prefix("$ ").unwrap_or(&line);
                used.extend(shell(line).iter().filter_map(reason).map(|(start, _)| *start));
                failures.extend(run(&mut sandbox, &block.place, line));
            }
        }
    }
    for (start, reason) in NOT_RUN {
        // Help examples use it too.
        if !used.contains(start) && !start.starts_with("openwork") {
            failures.push(format!("NOT_RUN has `{start}` ({reason}), but no page does"));
        }
    }
    assert_none(&failures);
}

/// Prose mentions commands: those with an output are run, of the others the
/// command and its flags must exist.
#[test]
fn every_command_mentioned_in_the_pages_exists() {
    let mut failures = Vec::new();
    let mut sandbox = Sandbox::new();
    for (page, text) in pages::pages() {
        for (place, span) in mentions(&page, &text) {
            let span = span.replace("SPEC", "2:4").replace("M,K", "16,32");
            let mut commands = shell(&span);
            let words = commands[0].words.split_off(1);
            let is_output = |word: &String| ["--out", "--save", "--svg"].contains(&word.as_str());
            if words.iter().any(is_output) && words[1] != "--format" {
                failures.extend(run(&mut sandbox, &place, &span));
                continue;
            }
            if words[0] == "help" {
                failures.extend(run(&mut sandbox, &place, &span));
                continue;
            }
            let help = sandbox.run_command(&[words[0].clone(), "--help".to_string()], "");
            if help.code != 0 {
                failures.push(format!("{place}: `{span}`: {}", help.err));
            }
            let known: Vec<&str> = help.out.split([' ', ',', '\n', '[', ']', '=']).collect();
            for flag in words.iter().filter(|word| word.starts_with('-')) {
                if !known.contains(&flag.as_str()) {
                    failures.push(format!("{place}: `{span}`: the command has no {flag}"));
                }
            }
        }
    }
    assert_none(&failures);
}

#[test]
fn every_example_of_the_help_texts_runs() {
    let folder = common::Folder::new();
    let help = |command: &str| {
        let output = folder.run(&format!("{command} --help"));
        (output.code == 0).then_some(output.out)
    };
    let top = help("").expect("the command has help");
    // Commands are listed by name with two spaces before it; so are other things.
    let names = top.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let mut texts = vec![("", top.clone())];
    texts.extend(
        names
            .filter(|name| name.starts_with(char::is_alphabetic))
            .filter_map(|name| Some((name, help(name)?))),
    );
    assert!(texts.len() > 10 && texts.iter().any(|(name, _)| *name == "prune"), "{top}");
    let mut failures = Vec::new();
    for (command, text) in texts {
        let mut sandbox = Sandbox::new();
        let mut examples = logical_lines(&text);
        examples.retain(|line| line.starts_with("openwork ") || line.contains("| openwork "));
        if examples.is_empty() {
            failures.push(format!("openwork {command} --help has no examples"));
        }
        for line in examples {
            failures.extend(run(&mut sandbox, &format!("openwork {command} --help"), &line));
        }
    }
    assert_none(&failures);
}

#[test]
fn every_recipe_of_the_pages_runs() {
    let mut failures = Vec::new();
    let mut count = 0;
    for (page, text) in pages::pages() {
        for block in blocks(&page, &text).iter().filter(|block| block.language == "toml") {
            count += 1;
            let mut sandbox = Sandbox::new();
            sandbox.write("recipe.toml", &block.text);
            let line = "prune model --recipe recipe.toml --calib c4.jsonl --samples 4 --seq-len 32 --out out";
            let words = shell(line).remove(0).words;
            let output = sandbox.run_command(&words, "");
            if output.code != 0 {
                failures.push(format!("{}\n{}\n{}", block.place, block.text, output.err));
            }
        }
    }
    assert!(count > 0, "no recipe was found");
    assert_none(&failures);
}

/// A `text` block with `$ openwork ..` shows what the command prints; a line `..`
/// stands for any lines.
#[test]
fn output_in_the_pages_is_what_the_command_prints() {
    let mut failures = Vec::new();
    for (page, text) in pages::pages() {
        let mut sandbox = Sandbox::new();
        for block in blocks(&page, &text).iter().filter(|block| block.language == "text") {
            for session in format!("\n{}", block.text).split("\n$ ").skip(1) {
                let (line, expected) = session.split_once('\n').unwrap_or((session, ""));
                let commands = shell(line);
                if reason(&commands[0]).is_some() {
                    continue;
                }
                let output =
                    sandbox.run(&commands).unwrap_or_else(|| panic!("{}: {line}", block.place));
                let printed = output.out + &output.err;
                if !matches(&printed, expected) {
                    failures.push(format!("{}: $ {line}\n{printed}", block.place));
                }
            }
        }
    }
    assert_none(&failures);
}

/// Whether a text has the lines of a pattern, `..` for any lines in between.
fn matches(text: &str, pattern: &str) -> bool {
    let lines: Vec<&str> = text.trim_end().lines().map(str::trim_end).collect();
    let mut rest = &lines[..];
    let mut free = false;
    for wanted in pattern.trim_end().lines().map(str::trim_end) {
        if wanted.trim() == ".." {
            free = true;
            continue;
        }
        let at = if free { rest.iter().position(|line| *line == wanted) } else { Some(0) };
        match at {
            Some(at) if rest.get(at) == Some(&wanted) => rest = &rest[at + 1..],
            _ => return false,
        }
        free = false;
    }
    free || rest.is_empty()
}

/// Paths in the guides for contributors: between backticks, relative to the tree
/// or to the folder in the heading above.
#[test]
fn every_path_in_the_guides_exists() {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let mut count = 0;
    for guide in ["ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = std::fs::read_to_string(root.join(guide)).unwrap();
        let mut folder = "";
        for line in text.lines() {
            folder = line.strip_prefix("### ").unwrap_or(folder);
            folder = if line.starts_with("## ") { "" } else { folder };
            for path in line.split('`').skip(1).step_by(2) {
                let ends =
                    ["/", ".rs", ".py", ".md", ".toml"].iter().any(|end| path.ends_with(end));
                if ends && !path.contains("NAME") {
                    assert!(root.join(folder).join(path).exists(), "{guide}: {path} in `{folder}`");
                    count += 1;
                }
            }
        }
    }
    assert!(count > 80, "{count}");
}
