//! What a demonstration says on the screen.

use std::io::IsTerminal;

/// A headline.
pub const HEADLINE: &str = "\x1b[1;36m";
/// A command.
pub const COMMAND: &str = "\x1b[1m";
/// A figure.
pub const FIGURE: &str = "\x1b[1;32m";
/// The end of a colour.
pub const PLAIN: &str = "\x1b[0m";

/// Colours are for terminals (<https://no-color.org>).
pub fn paint(code: &str) -> &str {
    if std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()) { code } else { "" }
}

/// Begins a scene.
pub fn headline(what: &str) {
    println!("\n{}== {what}{}", paint(HEADLINE), paint(PLAIN));
}

/// A command that is given next; `prompt` says where.
pub fn command(prompt: &str, command: &str) {
    println!("\n{}{prompt} {command}{}", paint(COMMAND), paint(PLAIN));
}
