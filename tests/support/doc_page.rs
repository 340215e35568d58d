//! The pages of the documentation: their blocks of code, links and lines.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use pulldown_cmark::{CodeBlockKind, Event, LinkType, Options, Parser, Tag, TagEnd};

/// A page of the documentation.
pub struct DocPage {
    /// Relative to the repository's root.
    pub path: PathBuf,
    text: String,
}

/// A block of code.
#[derive(Clone, Debug)]
pub struct Block {
    /// Where it begins: `docs/page.md:12`.
    pub place: String,
    /// The language after the three backticks: `python`; empty without one.
    pub language: String,
    /// The words of `<!-- test: … -->` above it.
    pub test: Vec<String>,
    pub code: String,
}

/// A piece of text and its place.
#[derive(Clone, Debug)]
pub struct Piece {
    pub place: String,
    pub text: String,
}

/// The repository's root.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every page of the documentation.
pub fn pages() -> Vec<DocPage> {
    let mut paths = Vec::new();
    for folder in [".", "tests", "clients"] {
        markdown_in(&root().join(folder), false, &mut paths);
    }
    // Not below: dependencies that the package managers of the languages have installed.
    for library in ["conformance", "go", "java", "node", "python"] {
        markdown_in(&root().join("clients").join(library), false, &mut paths);
    }
    for folder in ["docs", "helm"] {
        markdown_in(&root().join(folder), true, &mut paths);
    }
    paths.sort();
    assert!(paths.len() > 5, "only {paths:?} are there");
    let relative = |path: &PathBuf| path.strip_prefix(root()).unwrap().to_owned();
    paths.iter().map(|path| DocPage::read(&relative(path))).collect()
}

/// All blocks of all pages.
pub fn blocks() -> Vec<Block> {
    pages().iter().flat_map(DocPage::blocks).collect()
}

fn markdown_in(folder: &Path, below: bool, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() && below {
            markdown_in(&path, below, found);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
}

impl DocPage {
    /// Reads a page, by its path from the root.
    pub fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(root().join(path)).unwrap();
        Self { path: path.to_owned(), text }
    }

    /// Its code blocks, fenced and indented.
    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut test = Vec::new();
        let mut open: Option<Block> = None;
        for (event, range) in self.events() {
            match event {
                Event::Start(Tag::CodeBlock(kind)) => {
                    let language = match kind {
                        CodeBlockKind::Fenced(info) => info.into_string(),
                        CodeBlockKind::Indented => String::new(),
                    };
                    let test = std::mem::take(&mut test);
                    let place = self.place(&range);
                    open = Some(Block { place, language, test, code: String::new() });
                }
                Event::Text(text) => match &mut open {
                    Some(block) => block.code.push_str(&text),
                    None => test.clear(),
                },
                Event::End(TagEnd::CodeBlock) => blocks.extend(open.take()),
                Event::Html(html) => {
                    let comment = html.trim().strip_prefix("<!-- test:");
                    let words = comment.and_then(|rest| rest.strip_suffix("-->"));
                    test.extend(
                        words.into_iter().flat_map(str::split_whitespace).map(str::to_owned),
                    );
                }
                _ => {}
            }
        }
        blocks
    }

    /// Its inline code.
    pub fn spans(&self) -> Vec<Piece> {
        let code = |(event, range)| match event {
            Event::Code(text) => {
                Some(Piece { place: self.place(&range), text: text.into_string() })
            }
            _ => None,
        };
        self.events().filter_map(code).collect()
    }

    /// The targets of its links and images.
    pub fn links(&self) -> Vec<Piece> {
        let link = |(event, range): (_, Range<usize>)| match event {
            Event::Start(Tag::Link { link_type: LinkType::Email, .. }) => None,
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                Some(Piece { place: self.place(&range), text: dest_url.into_string() })
            }
            _ => None,
        };
        self.events().filter_map(link).collect()
    }

    /// The anchors that GitHub gives its headings, and those that it sets itself (`<a id="…">`).
    pub fn anchors(&self) -> HashSet<String> {
        let mut anchors = HashSet::new();
        let mut heading: Option<String> = None;
        for (event, _) in self.events() {
            match event {
                Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
                Event::Text(text) | Event::Code(text) => {
                    if let Some(heading) = &mut heading {
                        heading.push_str(&text);
                    }
                }
                Event::End(TagEnd::Heading(_)) => {
                    let slug = slug(&heading.take().unwrap());
                    let numbered = (1..).map(|number| format!("{slug}-{number}"));
                    let mut names = std::iter::once(slug.clone()).chain(numbered);
                    anchors.insert(names.find(|name| !anchors.contains(name)).unwrap());
                }
                Event::Html(html) | Event::InlineHtml(html) => {
                    for attribute in ["id=\"", "name=\""] {
                        let own =
                            html.split(attribute).skip(1).filter_map(|rest| rest.split('"').next());
                        anchors.extend(own.map(str::to_owned));
                    }
                }
                _ => {}
            }
        }
        anchors
    }

    /// The whole text, line by line, with places.
    pub fn lines(&self) -> Vec<Piece> {
        let piece = |(at, text): (usize, &str)| Piece {
            place: format!("{}:{}", self.path.display(), at + 1),
            text: text.to_owned(),
        };
        self.text.lines().enumerate().map(piece).collect()
    }

    fn events(&self) -> impl Iterator<Item = (Event<'_>, Range<usize>)> {
        Parser::new_ext(&self.text, Options::ENABLE_GFM | Options::ENABLE_TABLES).into_offset_iter()
    }

    fn place(&self, range: &Range<usize>) -> String {
        let line = self.text[..range.start].matches('\n').count() + 1;
        format!("{}:{line}", self.path.display())
    }
}

/// The anchor that GitHub gives a heading: lower case, without punctuation, hyphens for spaces.
pub fn slug(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    heading.trim().to_lowercase().chars().filter(kept).collect::<String>().replace(' ', "-")
}
