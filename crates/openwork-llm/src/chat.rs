//! Chat templates: a conversation as the text that a model was trained on, by the
//! model's own Jinja template, rendered as transformers does.
//!
//! ```
//! use openwork_llm::chat::{ChatTemplate, Message};
//! # fn main() -> Result<(), openwork_llm::chat::ChatError> {
//! let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>";
//! let template = ChatTemplate::new(template.to_string(), Default::default());
//! let text = template.render(&[Message::new("user", "Hello")], true)?;
//! assert_eq!(text, "<user>Hello<assistant>");
//! # Ok(()) }
//! ```

use crate::checkpoint::Checkpoint;
use crate::tokens::Tokenizer;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// Steps that a template may take: a template is part of an untrusted model, and may
/// loop.
const FUEL: u64 = 10_000_000;
/// Most bytes of a rendered conversation.
const MAX_TEXT: usize = 1 << 26;

/// Why a conversation cannot be rendered.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The model has no template.
    #[error(
        "the model has no chat template, so it was not trained for conversations; use `generate` with a plain prompt"
    )]
    Missing,
    /// There is no message.
    #[error("the conversation is empty; give at least one message")]
    Empty,
    /// A message without a role.
    #[error("message {0} has no role; give `user`, `assistant` or `system`")]
    Role(usize),
    /// The template refuses the conversation, or is not valid.
    #[error("the model's chat template fails: {0}")]
    Template(String),
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `user`, `assistant`, `system`, or what else the model knows.
    pub role: String,
    /// The text.
    pub content: String,
}

impl Message {
    /// A message.
    pub fn new(role: &str, content: &str) -> Self {
        Self { role: role.to_string(), content: content.to_string() }
    }
}

/// Special tokens that templates spell out.
#[derive(Clone, Debug, Default)]
pub struct SpecialTexts {
    /// Beginning of sequence.
    pub bos_token: String,
    /// End of sequence.
    pub eos_token: String,
}

/// A model's chat template.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    source: String,
    special: SpecialTexts,
}

impl ChatTemplate {
    /// A template, as Jinja source.
    pub fn new(source: String, special: SpecialTexts) -> Self {
        Self { source, special }
    }

    /// The template of a model: `chat_template.jinja`, `chat_template.json`, the field of
    /// `tokenizer_config.json`, or the metadata of a GGUF file.
    pub fn from_checkpoint(model: &Checkpoint, tokenizer: &Tokenizer) -> Result<Self, ChatError> {
        let spelling = |id: Option<u32>| id.and_then(|id| tokenizer.spelling(id));
        let special = SpecialTexts {
            bos_token: spelling(tokenizer.bos()).unwrap_or_default(),
            eos_token: spelling(tokenizer.eos().first().copied()).unwrap_or_default(),
        };
        let file = |name: &str| model.companion(name).ok().flatten();
        let text = || Some(String::from_utf8_lossy(&file("chat_template.jinja")?).into_owned());
        let field = |name: &str| {
            let json: serde_json::Value = serde_json::from_slice(&file(name)?).ok()?;
            match &json["chat_template"] {
                serde_json::Value::String(template) => Some(template.clone()),
                // Several by name; the default one is for plain conversations.
                serde_json::Value::Array(named) => named
                    .iter()
                    .find(|one| one["name"] == "default")
                    .or(named.first())
                    .and_then(|one| one["template"].as_str().map(String::from)),
                _ => None,
            }
        };
        let source = text()
            .or_else(|| field("chat_template.json"))
            .or_else(|| field("tokenizer_config.json"))
            .or_else(|| model.chat_template())
            .ok_or(ChatError::Missing)?;
        Ok(Self { source, special })
    }

    /// The text of a conversation; with `add_generation_prompt`, up to where the model
    /// answers.
    pub fn render(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, ChatError> {
        if messages.is_empty() {
            return Err(ChatError::Empty);
        }
        if let Some(at) = messages.iter().position(|message| message.role.is_empty()) {
            return Err(ChatError::Role(at));
        }
        let failed = |error: Error| ChatError::Template(words(&error));
        let mut environment = Environment::new();
        let mut syntax = SyntaxConfig::builder();
        let syntax = syntax.trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(failed)?);
        environment.set_fuel(Some(FUEL));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", to_json);
        environment.add_template("chat", &self.source).map_err(failed)?;
        let template = environment.get_template("chat").map_err(failed)?;
        let SpecialTexts { bos_token, eos_token } = &self.special;
        let messages: Vec<Value> = messages
            .iter()
            .map(|Message { role, content }| {
                Value::from_pairs([("role", role.as_str()), ("content", content.as_str())])
            })
            .collect();
        let context = minijinja::context! { messages, add_generation_prompt, bos_token, eos_token };
        let mut text = LimitedText::default();
        template.render_captured_to(context, &mut text).map_err(failed)?;
        String::from_utf8(text.0).map_err(|error| ChatError::Template(error.to_string()))
    }
}

/// A text of at most [`MAX_TEXT`] bytes.
#[derive(Default)]
struct LimitedText(Vec<u8>);

impl Write for LimitedText {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_TEXT {
            let why = format!("its output exceeds the limit of {MAX_TEXT} bytes");
            return Err(std::io::Error::other(why));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The message of a template's failure, with its line.
fn words(error: &Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), String::from);
    match error.line() {
        Some(line) => format!("{what} (line {line} of the template)"),
        None => what,
    }
}

/// JSON as Python writes it: nothing is escaped for HTML, and a space follows commas and
/// colons.
fn to_json(value: Value, options: minijinja::value::Kwargs) -> Result<String, Error> {
    let wrong =
        |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let indent: Option<usize> = options.get("indent")?;
    let mut bytes = Vec::new();
    match indent {
        Some(indent) => {
            let spaces = " ".repeat(indent.min(16));
            let format = PrettyFormatter::with_indent(spaces.as_bytes());
            value.serialize(&mut Serializer::with_formatter(&mut bytes, format)).map_err(wrong)?;
        }
        None => {
            value.serialize(&mut Serializer::with_formatter(&mut bytes, Spaced)).map_err(wrong)?;
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// JSON on one line with a space after commas and colons.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: Write + ?Sized>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_key<W: Write + ?Sized>(
        &mut self,
        out: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { out.write_all(b", ") }
    }

    fn begin_object_value<W: Write + ?Sized>(&mut self, out: &mut W) -> std::io::Result<()> {
        out.write_all(b": ")
    }
}

/// Today's date in UTC, as some templates mention it.
fn strftime_now(format: String) -> Result<String, Error> {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |past| past.as_secs());
    strftime(&format, seconds).ok_or_else(|| {
        let what = format!("the date format {format} is not supported");
        Error::new(ErrorKind::InvalidOperation, what)
    })
}

/// A date in UTC, given in seconds since 1970, as C's `strftime` writes it; `None` for a
/// conversion that is not supported.
fn strftime(format: &str, seconds: u64) -> Option<String> {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    // The civil calendar from days: years of 365 or 366 days, then months.
    let (mut year, mut day) = (1970, days);
    let leap = |year: u64| {
        (year.is_multiple_of(4) && !year.is_multiple_of(100)) || year.is_multiple_of(400)
    };
    while day >= 365 + u64::from(leap(year)) {
        day -= 365 + u64::from(leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while day >= lengths[month] {
        day -= lengths[month];
        month += 1;
    }
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(c) = letters.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        text += &match letters.next()? {
            'Y' => year.to_string(),
            'm' => format!("{:02}", month + 1),
            'd' => format!("{:02}", day + 1),
            'B' => MONTHS[month].to_string(),
            'b' => MONTHS[month][..3].to_string(),
            'H' => format!("{:02}", time / 3600),
            'M' => format!("{:02}", time / 60 % 60),
            'S' => format!("{:02}", time % 60),
            '%' => "%".to_string(),
            _ => return None,
        };
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(template: &str, messages: &[Message]) -> Result<String, String> {
        let special = SpecialTexts { bos_token: "<s>".to_string(), eos_token: "</s>".to_string() };
        let template = ChatTemplate::new(template.to_string(), special);
        template.render(messages, true).map_err(|error| error.to_string())
    }

    /// Templates in the manner of real ones, and what transformers renders.
    #[test]
    fn templates_render_as_in_transformers() {
        let talk = [
            Message::new("system", "Be <brief>."),
            Message::new("user", " Hi \u{e9}'s "),
            Message::new("assistant", "Hello."),
        ];
        let cases = [
            // ChatML with blocks on lines of their own: these leave no white space.
            (
                "{% for message in messages %}\n    {% if loop.first and message['role'] != 'system' %}\n{{- 'no' }}\n    {% endif %}\n{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' }}\n{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
                "<|im_start|>system\nBe <brief>.<|im_end|>\n<|im_start|>user\n Hi \u{e9}'s <|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>assistant\n",
            ),
            // Methods of Python's strings, slices, namespaces, loop controls.
            (
                "{%- set ns = namespace(count=0) -%}{{ bos_token }}{%- for m in messages[1:] -%}{%- if m.role == 'assistant' -%}{%- break -%}{%- endif -%}{%- set ns.count = ns.count + 1 -%}[{{ m.content.strip() | upper }}{{ m.content | trim | length }}{{ m['content'].startswith(' ') }}]{%- endfor -%}{{ ns.count }}{{ eos_token }}",
                "<s>[HI \u{c9}'S6True]1</s>",
            ),
            ("{{ messages[1] | tojson }}", "{\"role\": \"user\", \"content\": \" Hi \u{e9}'s \"}"),
        ];
        for (template, want) in cases {
            let got = render(template, &talk);
            // Python writes truth values with a capital.
            assert_eq!(got.map(|got| got.replace("true", "True")), Ok(want.to_string()));
        }
    }

    #[test]
    fn failures_say_what_is_wrong() {
        let hi = [Message::new("user", "hi")];
        let cases: [(&str, &[Message], &str); 6] = [
            ("x", &[], "the conversation is empty; give at least one message"),
            ("x", &[Message::new("", "hi")], "message 0 has no role; give"),
            (
                "{{ raise_exception('roles must alternate') }}",
                &hi,
                "the model's chat template fails: roles must alternate (line 1",
            ),
            ("{% if %}", &hi, "the model's chat template fails: unexpected end of block"),
            (
                "{% for i in range(9999) %}{% for j in range(9999) %}{{ j }}{% endfor %}{% endfor %}",
                &hi,
                "the model's chat template fails: ",
            ),
            (
                "{{ strftime_now('%Q') }}",
                &hi,
                "the model's chat template fails: the date format %Q",
            ),
        ];
        for (template, messages, words) in cases {
            let found = render(template, messages).unwrap_err();
            assert!(found.starts_with(words), "{found}");
        }
    }

    #[test]
    fn dates_follow_the_calendar() {
        let cases = [
            (0, "01 Jan 1970 00:00:00"),
            (951_782_399, "28 Feb 2000 23:59:59"),
            (951_782_400, "29 Feb 2000 00:00:00"),
            (4_107_542_400, "01 Mar 2100 00:00:00"),
            (1_735_689_599, "31 Dec 2024 23:59:59"),
        ];
        for (seconds, want) in cases {
            assert_eq!(strftime("%d %b %Y %H:%M:%S", seconds).as_deref(), Some(want));
        }
        assert_eq!(strftime("%B %m%%", 0).as_deref(), Some("January 01%"));
    }
}
