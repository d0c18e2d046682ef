//! Writes SVG: elements, attributes, escaped text.

use std::fmt::{Display, Write};

/// An SVG document or fragment under construction.
#[derive(Debug, Default)]
pub(crate) struct Svg {
    text: String,
}

impl Svg {
    /// A document of the given size, its style limited to `class`.
    pub fn document(
        (width, height): (usize, usize),
        class: &str,
        content: impl FnOnce(&mut Self),
    ) -> String {
        let view_box = format!("0 0 {width} {height}");
        let attributes: [(&str, &dyn Display); 6] = [
            ("xmlns", &"http://www.w3.org/2000/svg"),
            ("width", &width),
            ("height", &height),
            ("viewBox", &view_box),
            ("role", &"img"),
            ("class", &class),
        ];
        let mut svg = Self::default();
        svg.inside("svg", &attributes, content);
        svg.finish()
    }

    /// `<tag attributes/>`.
    pub fn empty(&mut self, tag: &str, attributes: &[(&str, &dyn Display)]) {
        self.start(tag, attributes);
        self.text.push_str("/>\n");
    }

    /// `<tag attributes>content</tag>`.
    pub fn inside(
        &mut self,
        tag: &str,
        attributes: &[(&str, &dyn Display)],
        content: impl FnOnce(&mut Self),
    ) {
        self.start(tag, attributes);
        self.text.push_str(">\n");
        content(self);
        let _ = writeln!(self.text, "</{tag}>");
    }

    /// `<tag attributes>text</tag>`, escaped and on one line.
    pub fn text(&mut self, tag: &str, attributes: &[(&str, &dyn Display)], text: &str) {
        self.start(tag, attributes);
        let _ = writeln!(self.text, ">{}</{tag}>", escape_html(text));
    }

    fn start(&mut self, tag: &str, attributes: &[(&str, &dyn Display)]) {
        let _ = write!(self.text, "<{tag}");
        for (name, value) in attributes {
            let _ = write!(self.text, " {name}=\"{}\"", escape_html(&value.to_string()));
        }
    }

    /// The finished text.
    pub fn finish(self) -> String {
        self.text
    }
}

/// Escapes `text` for an element or an attribute of HTML or XML. Line breaks
/// are kept; other control characters, which XML cannot hold, become spaces.
pub fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' => out.push_str("&#10;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let mut svg = Svg::default();
        svg.text("t", &[("a", &"\"<\"")], "a -> b & \u{1}c");
        assert_eq!(escape_html("b='c'\n"), "b=&#39;c&#39;&#10;");
        assert_eq!(svg.finish(), "<t a=\"&quot;&lt;&quot;\">a -&gt; b &amp;  c</t>\n");
    }
}
