"""Mutants of Rust source: lists the mutants of a file, and builds the file with some of them behind a switch.

The mutations are those of cargo-mutants: a function that returns at once, another operator, a deleted negation, a
deleted match arm, a guard that always or never holds. Constants, macros, and tests are excluded.
"""
import re

import tree_sitter
import tree_sitter_rust

PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_rust.language()))
OPERATORS = {
    "==": ["!="], "!=": ["=="], "&&": ["||"], "||": ["&&"],
    "<": ["==", ">", "<="], ">": ["==", "<", ">="], "<=": [">"], ">=": ["<"],
    "+": ["-", "*"], "-": ["+", "/"], "*": ["+", "/"], "/": ["%", "*"], "%": ["/", "+"],
    "<<": [">>"], ">>": ["<<"], "&": ["|", "^"], "|": ["&", "^"], "^": ["|", "&"],
    "+=": ["-=", "*="], "-=": ["+=", "/="], "*=": ["+=", "/="],
    "|=": ["&=", "^="], "&=": ["|=", "^="], "^=": ["|=", "&="], "<<=": [">>="], ">>=": ["<<="],
}
INTEGERS = {sign + bits for sign in "ui" for bits in ("8", "16", "32", "64", "128", "size")}
# Node kinds that are skipped, because their code cannot call the switch.
CONSTANT = {"const_item", "static_item", "array_type", "attribute_item", "macro_invocation", "macro_definition",
            "enum_item", "type_item"}

# Appended to each crate. `MUTANT` selects the active mutant. `MUTANT_LOG` is the file that records which test reaches
# which mutant.
SWITCH = r"""
extern crate std as mutant_std;
#[allow(missing_docs, dead_code)]
pub(crate) fn mutant(n: u32) -> bool {
    use mutant_std::{cell::RefCell, collections::HashSet, io::Write, string::String, sync::OnceLock, thread_local};
    static ON: OnceLock<(u32, Option<String>)> = OnceLock::new();
    thread_local! { static SEEN: RefCell<HashSet<u32>> = RefCell::default(); }
    let (on, log) = ON.get_or_init(|| (
        mutant_std::env::var("MUTANT").ok().and_then(|v| v.parse().ok()).unwrap_or(0),
        mutant_std::env::var("MUTANT_LOG").ok(),
    ));
    if let Some(log) = log
        && SEEN.try_with(|seen| seen.borrow_mut().insert(n)).unwrap_or(false)
    {
        let thread = mutant_std::thread::current();
        let line = mutant_std::format!("{n}\t{}\n", thread.name().unwrap_or("?"));
        let mut file = mutant_std::fs::OpenOptions::new().append(true).create(true).open(log).unwrap();
        file.write_all(line.as_bytes()).unwrap();
    }
    *on == n
}
"""


def values(kind):
    """Values that a mutant of a function with return type `kind` returns at once."""
    kind = kind.strip()
    if kind in ("", "()"):
        return ["()"]
    if kind == "bool":
        return ["true", "false"]
    if kind in INTEGERS:
        return ["0", "1"]
    if kind in ("&str", "&'static str"):
        return ['""', '"xyzzy"']
    if kind == "fmt::Result":
        return ["Ok(())"]
    inner = re.match(r"^(?:\w+::)*(Option|Result|Vec)<(.*)>$", kind, re.S)
    if not inner:
        return []
    name, inside = inner.groups()
    if name == "Vec":
        return ["Default::default()"]
    if name == "Option":
        return ["None"] + [f"Some({v})" for v in values(inside) if not v.startswith("Default")]
    depth, first = 0, ""
    for char in inside:
        depth += (char in "<([") - (char in ">)]")
        if char == "," and depth == 0:
            break
        first += char
    return [f"Ok({v})" for v in values(first)]


def text(node):
    return node.text.decode()


def is_test(node):
    """Whether an attribute excludes the node from release builds."""
    before = node.prev_sibling
    while before is not None and before.type in ("attribute_item", "line_comment", "block_comment"):
        if before.type == "attribute_item" and re.search(r"cfg\(test\)|#\[test\]|cfg\(any\(test", text(before)):
            return True
        before = before.prev_sibling
    return False


def mutants(source):
    """All mutants of a file: kind, replaced byte range, line, replacement, and description."""
    found = []

    def add(kind, node, line, to, what):
        found.append({"kind": kind, "start": node.start_byte, "end": node.end_byte, "line": line.start_point[0] + 1,
                      "to": to, "what": what})

    def walk(node, function):
        kind = node.type
        if kind in CONSTANT or is_test(node):
            return
        if kind == "function_item":
            modifiers = next((text(c) for c in node.children if c.type == "function_modifiers"), "")
            name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
            if "const" in modifiers or body is None:
                return
            function, returns = text(name), node.child_by_field_name("return_type")
            if any(c.type not in ("{", "}", "line_comment") for c in body.children):
                for value in values(text(returns) if returns else ""):
                    if text(body)[1:-1].strip() != value:
                        add("fn", body, name, value, f"replace {function} with {value}")
        if function:
            words = " ".join(text(node).split())[:80]
            if kind in ("binary_expression", "compound_assignment_expr"):
                operator = node.child_by_field_name("operator") or node.children[1]
                for to in OPERATORS.get(text(operator), []):
                    add("op", node, operator, to, f"replace {text(operator)} with {to} in {function}: {words}")
            if kind == "unary_expression" and text(node.children[0]) in ("!", "-"):
                add("not", node, node, "", f"delete {text(node.children[0])} in {function}: {words}")
            if kind == "match_block":
                arms = [c for c in node.children if c.type == "match_arm"]
                patterns = [arm.child_by_field_name("pattern") for arm in arms]
                rest = any(text(pattern).strip() == "_" for pattern in patterns)
                for arm, pattern in zip(arms, patterns):
                    words = " ".join(text(pattern).split())[:70]
                    if rest and not words.startswith("_"):
                        add("arm", arm, arm, "", f"delete match arm {words} in {function}")
                    guard = pattern.child_by_field_name("condition")
                    if guard is not None and guard.type not in ("let_condition", "let_chain"):
                        for to in ("true", "false"):
                            add("guard", arm, guard, to, f"replace the guard of {words} with {to} in {function}")
        for at, child in enumerate(node.children):
            if kind != "array_expression" or node.field_name_for_child(at) != "length":
                walk(child, function)

    walk(PARSER.parse(source).root_node, None)
    return found


def switched(source, chosen):
    """The file with these mutants, which have an `id` each, behind the switch."""
    places = {}
    for one in chosen:
        kind = "arm" if one["kind"] == "guard" else one["kind"]
        places.setdefault((kind, one["start"], one["end"]), []).append(one)

    def part(start, end):
        return source[start:end].decode()

    def inside(node, start, end):
        """The text from `start` to `end` in a node, with its children rendered."""
        out = ""
        for child in node.children:
            if start <= child.start_byte and child.end_byte <= end:
                out += part(start, child.start_byte) + render(child)
                start = child.end_byte
        return out + part(start, end)

    def render(node):
        def here(kind):
            return places.get((kind, node.start_byte, node.end_byte), [])

        plain = inside(node, node.start_byte, node.end_byte)
        if node.type == "block" and node.parent.type == "function_item":
            early = "".join(f" if crate::mutant({m['id']}) {{ return {m['to']}; }}" for m in here("fn"))
            return "{" + early + plain[1:]
        if here("op"):
            left, right = text(node.child_by_field_name("left")), text(node.child_by_field_name("right"))
            other = "".join(f"if crate::mutant({m['id']}) {{ ({left}) {m['to']} ({right}) }} else " for m in here("op"))
            return f"({other}{{ {plain} }})"
        if here("not"):
            number = here("not")[0]["id"]
            return f"(if crate::mutant({number}) {{ {text(node.children[1])} }} else {{ {plain} }})"
        if node.type == "match_arm" and here("arm"):
            pattern = node.child_by_field_name("pattern")
            condition = pattern.child_by_field_name("condition")
            guard = f"({render(condition)})" if condition else "true"
            for one in here("arm"):
                number = one["id"]
                if one["kind"] == "guard":
                    guard = f"(if crate::mutant({number}) {{ {one['to']} }} else {{ {guard} }})"
                else:
                    guard = f"(!crate::mutant({number}) && {guard})"
            end = condition.start_byte if condition else pattern.end_byte
            matched = part(node.start_byte, end).rstrip()
            matched = matched[:-2] if condition else matched
            return matched + " if " + guard + inside(node, pattern.end_byte, node.end_byte)
        return plain

    root = PARSER.parse(source).root_node
    return part(0, root.start_byte) + render(root) + part(root.end_byte, len(source))
