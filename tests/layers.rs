//! Imports: between the modules of a crate there is no circle, and no two folders need each other. Cargo
//! sees to it between crates. Names: no two public types share one.

#![allow(clippy::unwrap_used, reason = "a test ends by a panic")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::Visit;
use syn::{Attribute, Ident, Item, ItemMod, ItemUse, UseTree, Visibility};

/// A module by its path within its crate; the crate itself is the empty path.
type Module = Vec<String>;

/// Which module imports which.
type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// The paths that one file names. `pub use` is left out: a module may offer what its parts hold.
#[derive(Default)]
struct Paths(Vec<Vec<String>>);

impl<'ast> Visit<'ast> for Paths {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_of_tests(&module.attrs) {
            syn::visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_use(&mut self, import: &'ast ItemUse) {
        if matches!(import.vis, Visibility::Inherited) && !is_of_tests(&import.attrs) {
            flatten(&import.tree, &mut Vec::new(), &mut self.0);
        }
    }

    /// `pub(super)` does not import.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        // A name by itself is of a variable, or was imported.
        if path.segments.len() > 1 {
            self.0.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        syn::visit::visit_path(self, path);
    }
}

/// The names of the public types that one file defines.
#[derive(Default)]
struct PublicTypes(Vec<String>);

impl PublicTypes {
    fn add(&mut self, visibility: &Visibility, name: &Ident) {
        if matches!(visibility, Visibility::Public(_)) {
            self.0.push(name.to_string());
        }
    }
}

impl<'ast> Visit<'ast> for PublicTypes {
    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_of_tests(&module.attrs) {
            syn::visit::visit_item_mod(self, module);
        }
    }

    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Struct(item) => self.add(&item.vis, &item.ident),
            Item::Enum(item) => self.add(&item.vis, &item.ident),
            Item::Trait(item) => self.add(&item.vis, &item.ident),
            Item::Type(item) => self.add(&item.vis, &item.ident),
            _ => {}
        }
        syn::visit::visit_item(self, item);
    }
}

fn is_of_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

fn flatten(tree: &UseTree, path: &mut Vec<String>, found: &mut Vec<Vec<String>>) {
    match tree {
        UseTree::Path(step) => {
            path.push(step.ident.to_string());
            flatten(&step.tree, path, found);
            path.pop();
        }
        UseTree::Name(name) => found.push([&path[..], &[name.ident.to_string()]].concat()),
        UseTree::Rename(name) => found.push([&path[..], &[name.ident.to_string()]].concat()),
        UseTree::Glob(_) => found.push(path.clone()),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, path, found)),
    }
}

/// The Rust files of a crate, by module.
fn files(folder: &Path, module: &Module, found: &mut BTreeMap<Module, PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let child = [&module[..], std::slice::from_ref(&name)].concat();
        if path.is_dir() {
            files(&path, &child, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            match &*name {
                // Unit tests, and the binary.
                "tests" | "main" => {}
                "lib" | "mod" => drop(found.insert(module.clone(), path)),
                _ => drop(found.insert(child, path)),
            }
        }
    }
}

/// The module of the crate that a path leads into, if it leads into one.
fn resolve(path: &[String], from: &Module, modules: &BTreeMap<Module, PathBuf>) -> Option<Module> {
    let supers = path.iter().take_while(|step| *step == "super").count();
    let mut full = match path.first()?.as_str() {
        "crate" => path[1..].to_vec(),
        "self" => [from, &path[1..]].concat(),
        "super" => [&from[..from.len().checked_sub(supers)?], &path[supers..]].concat(),
        first => {
            let child = [&from[..], &[first.to_owned()]].concat();
            modules.contains_key(&child).then(|| [&from[..], path].concat())?
        }
    };
    while !full.is_empty() && !modules.contains_key(&full) {
        full.pop();
    }
    // What lies in the root of a crate is what it offers to others.
    (!full.is_empty() && full != *from).then_some(full)
}

fn imports(root: &Path) -> Imports {
    let mut modules = BTreeMap::new();
    files(root, &Vec::new(), &mut modules);
    let mut imports = Imports::new();
    for (module, file) in &modules {
        let source = std::fs::read_to_string(file).unwrap();
        let mut paths = Paths::default();
        paths.visit_file(&syn::parse_file(&source).unwrap());
        let targets = paths.0.iter().filter_map(|path| resolve(path, module, &modules));
        imports.insert(module.clone(), targets.collect());
    }
    imports
}

/// A circle, in which each module imports the next one; empty where there is none.
fn circle(imports: &Imports) -> Vec<String> {
    let mut left = imports.clone();
    loop {
        let modules: BTreeSet<Module> = left.keys().cloned().collect();
        // A module that imports nothing of what is left is in no circle.
        for targets in left.values_mut() {
            targets.retain(|target| modules.contains(target));
        }
        left.retain(|_, targets| !targets.is_empty());
        if left.len() == modules.len() {
            break;
        }
    }
    // Each of what is left imports another one of it: sooner or later one comes again.
    let mut way: Vec<&Module> = Vec::new();
    let mut next = left.keys().next();
    while let Some(module) = next {
        if let Some(begin) = way.iter().position(|before| *before == module) {
            return way[begin..].iter().map(|module| module.join("::")).collect();
        }
        way.push(module);
        next = left[module].first();
    }
    Vec::new()
}

/// The imports between the folders at the top of a crate, whose files count as one.
fn by_folder(imports: &Imports) -> Imports {
    let folders: BTreeSet<&String> =
        imports.keys().filter(|path| path.len() > 1).map(|path| &path[0]).collect();
    let folder = |module: &Module| module.first().filter(|first| folders.contains(first)).cloned();
    let mut between = Imports::new();
    for (module, targets) in imports {
        let Some(from) = folder(module) else { continue };
        let targets = targets.iter().filter_map(folder).filter(|to| *to != from);
        between.entry(vec![from.clone()]).or_default().extend(targets.map(|to| vec![to]));
    }
    between
}

fn roots() -> Vec<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let crates = std::fs::read_dir(repository.join("crates")).unwrap();
    let crates = crates.map(|entry| entry.unwrap().path().join("src"));
    crates.chain([repository.join("src")]).collect()
}

#[test]
fn no_module_imports_itself_by_way_of_others() {
    for root in roots() {
        let circle = circle(&imports(&root));
        assert!(circle.is_empty(), "{}: each imports the next: {circle:?}", root.display());
    }
}

#[test]
fn no_two_folders_need_each_other() {
    for root in roots() {
        let circle = circle(&by_folder(&imports(&root)));
        assert!(circle.is_empty(), "{}: each imports the next: {circle:?}", root.display());
    }
}

#[test]
fn no_two_public_types_share_a_name() {
    let mut homes = BTreeMap::<String, Vec<PathBuf>>::new();
    for root in roots() {
        let mut modules = BTreeMap::new();
        files(&root, &Vec::new(), &mut modules);
        for file in modules.into_values() {
            let mut types = PublicTypes::default();
            types.visit_file(&syn::parse_file(&std::fs::read_to_string(&file).unwrap()).unwrap());
            types.0.into_iter().for_each(|name| homes.entry(name).or_default().push(file.clone()));
        }
    }
    assert!(homes.len() > 100, "only {} public types found", homes.len());

    homes.retain(|_, files| files.len() > 1);

    assert!(homes.is_empty(), "{homes:#?}");
}

#[test]
fn a_circle_is_found() {
    let module = |name: &str| vec![name.to_owned()];
    let imports = Imports::from([
        (module("a"), BTreeSet::from([module("b")])),
        (module("b"), BTreeSet::from([module("c")])),
        (module("c"), BTreeSet::from([module("b")])),
        (module("d"), BTreeSet::from([module("a")])),
        (module("e"), BTreeSet::new()),
    ]);

    assert_eq!(circle(&imports), ["b", "c"]);
}
