//! The documentation as data: code blocks, shell commands and inline mentions,
//! found by parsing the pages, so that rewording a page needs no change here.

use std::path::Path;

pub mod sandbox;

/// A fenced code block.
pub struct Block {
    /// Where it is, for messages: `docs/pruning.md:12`.
    pub place: String,
    pub language: String,
    pub text: String,
}

/// README.md and every page of docs/, with its name.
pub fn pages() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut names = vec!["README.md".to_string()];
    for entry in std::fs::read_dir(root.join("docs")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        if name.ends_with(".md") {
            names.push(format!("docs/{name}"));
        }
    }
    names.sort();
    let read = |name: String| {
        let text = std::fs::read_to_string(root.join(&name)).unwrap();
        (name, text)
    };
    names.into_iter().map(read).collect()
}

/// The fenced code blocks of a page.
pub fn blocks(page: &str, text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in text.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(language), None) => {
                let place = format!("{page}:{}", number + 1);
                let language = language.trim().to_string();
                open = Some(Block { place, language, text: String::new() });
            }
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (None, Some(block)) => block.text += &format!("{line}\n"),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{page}: a code block is not closed");
    blocks
}

/// Inline code spans of the prose that begin with `openwork `, with their places.
pub fn mentions(page: &str, text: &str) -> Vec<(String, String)> {
    let mut fenced = false;
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let spans = line.split('`').skip(1).step_by(2).filter(|s| s.starts_with("openwork "));
            found.extend(spans.map(|span| (format!("{page}:{}", number + 1), span.to_string())));
        }
    }
    found
}

/// Lines, joined after a backslash and within the quotes of a command.
pub fn logical_lines(text: &str) -> Vec<String> {
    let joined = text.replace("\\\n", " ");
    let mut lines: Vec<String> = Vec::new();
    let mut is_open = false;
    for line in joined.lines().map(str::trim) {
        match lines.last_mut().filter(|_| is_open) {
            Some(last) => *last += &format!(" {line}"),
            None => lines.push(line.to_string()),
        }
        // Prose may have an apostrophe, a command has pairs of quotes.
        let last = lines.last().expect("just pushed");
        let is_command = last.trim_start_matches("$ ").starts_with("openwork ");
        is_open = is_command && last.matches('\'').count() % 2 == 1;
    }
    lines
}

/// One simple command of a shell line.
#[derive(Clone, Debug, PartialEq)]
pub struct Simple {
    pub words: Vec<String>,
    /// Whether it reads the output of the command before it.
    pub piped: bool,
    /// The file that its input is redirected from.
    pub input: Option<String>,
}

impl Simple {
    fn new(piped: bool) -> Self {
        Self { words: Vec::new(), piped, input: None }
    }
}

/// Splits a line as a shell does: quotes, comments, pipes, `&&`, `;`, `<` and `>`.
pub fn shell(line: &str) -> Vec<Simple> {
    let mut commands = vec![Simple::new(false)];
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut redirect: Option<char> = None;
    // A space at the end completes the last word.
    let mut chars = line.chars().chain([' ']).peekable();
    while let Some(c) = chars.next() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (Some('"') | None, '\\') => word.get_or_insert_default().extend(chars.next()),
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, ' ' | '|' | ';' | '&' | '<' | '>') => {
                let last = commands.last_mut().expect("never empty");
                if let Some(word) = word.take() {
                    match redirect.take() {
                        Some('<') => last.input = Some(word),
                        Some(_) => {}
                        None => last.words.push(word),
                    }
                }
                match c {
                    ' ' => {}
                    '<' | '>' => redirect = Some(c),
                    _ => {
                        chars.next_if(|&next| c == '&' && next == '&');
                        commands.push(Simple::new(c == '|'));
                    }
                }
            }
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    assert!(quote.is_none(), "unbalanced quotes: {line}");
    commands.retain(|command| !command.words.is_empty());
    commands
}

#[test]
fn shell_lines_are_split_as_a_shell_does() {
    let words = |line: &str| -> Vec<Vec<String>> {
        shell(line).into_iter().map(|command| command.words).collect()
    };
    assert_eq!(words("a 'b c'  \"d \\\" e\" f\\ g # h"), [["a", "b c", "d \" e", "f g"]]);
    assert_eq!(words("a ''"), [["a", ""]]);
    assert_eq!(words("a > b; c && d"), [["a"], ["c"], ["d"]]);
    assert_eq!(shell("a < b")[0].input.as_deref(), Some("b"));
    assert!(words("# only a comment").is_empty());
    let lines = logical_lines("a \\\n b\nit's prose\n openwork show 'x\n y' z");
    assert_eq!(lines, ["a   b", "it's prose", "openwork show 'x y' z"]);
    let piped = shell("echo '{\"a\": 1}' | openwork layout --batch");
    assert_eq!((piped[0].piped, piped[1].piped), (false, true));
    assert_eq!(piped[0].words[1], "{\"a\": 1}");
}
