//! Keys and tokens that are public: examples of standards and of the manual, and common test words. They authenticate
//! nothing, so the configuration refuses them.

use super::item::problem;
use super::origin::Problem;
use super::tree::{Node, Value};

/// Public halves of Ed25519 keys: RFC 8410 (10.3), then RFC 8032 (7.1).
const KEYS: [&str; 6] = [
    "19bf44096984cdfe8541bac167dc3b96c85086aa30b6b6cb0c5c38ad703166e1",
    "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
    "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
    "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
    "278117fc144c72340f67d0f2316e8386ceffbf2b2428c9c51fef7c597f1d426e",
    "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
];

/// SHA-256 of tokens: of earlier editions of the manual, then of the empty text and of words, each also with the
/// newline that `echo` adds.
const TOKENS: [&str; 25] = [
    "4e738ca5563c06cfd0018299933d58db1dd8bf97f6973dc99bf6cdc64b5550bd",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "01ba4719c80b6fe911b091a7c05124b64eeece964e09c058ef8f9805daca546b",
    "3c469e9d6c5875d37a43f353d4f88e61fcf812c66eee3457465a40b0da4153e0",
    "e078cb80a315c1545d5396567810bf94dc360f30bfdaae14ca6aad6cf9fe768d",
    "f98103e9217f099208569d295c1b276f1821348636c268c854bb2a086e0037cd",
    "765edc39396a54a8b64f84c78e4dbd23a93f253f10d33ea6e172fdedebe58090",
    "816b912e0cf8ec6d7c93272b8d7067eb5291a41ac27c13e9f005072b15092f98",
    "b77d5f876f580da44a0ab88835321ae16445fa3ffc54fb58bfe3411ca8f69530",
    "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b",
    "b37e50cedcd3e3f1ff64f4afc0422084ae694253cf399326868e07a35f4a45fb",
    "5e884898da28047151d0e56f8dc6292773603d0d6aabbdd62a11ef721d1542d8",
    "6b3a55e0261b0304143f805a24924d0c1c44524821305f31d9277843b8a10f4e",
    "057ba03d6c44104863dc7361fe4578965d1887360f90a0895882e58a6248fc86",
    "41edf6e61ed42a3c6848b0ae91ddc5662377c09a3ed38fcd9f9e82664294bcfd",
    "8c6976e5b5410415bde908bd4dee15dfb167a9c873fc4bb8a81f6f2ab448a918",
    "fc8252c8dc55839967c58b9ad755a59b61b67c13227ddae4bd3f78a38bf394f7",
    "59d7981d69d01ad39987297e17bf64306c200f05018e3431c8486a6f76dd2ec7",
    "bfa3b080592db6f3d44484e0f6db52c32f25205f5769009a33eff83b7dcb3d5f",
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "f2ca1bb6c7e907d06dafe4687e579fce76b37e4e93b7605022da52e6ccc26fd2",
    "03ac674216f3e15c761ee1a5e255f067953623c8b388b4459e13f978d7c846f4",
    "a883dafc480d466ee04e0d6da986bd78eb1fdd2178d04693723da3a8f95d42f4",
    "ef797c8118f02dfb649607dd5d3f8c7623048c9c063d532cc95c5ed7a898a64f",
    "2634c3097f98e36865f0c572009c4ffd73316bc8b88ccfe8d196af35f46e2394",
];

/// Refuses a public key whose private half is public.
pub fn refuse_key(text: &str) -> Result<(), String> {
    refuse(
        text,
        &KEYS,
        "the private half of this key is public, as an example of a standard; make a new key with \
         `openssl genpkey -algorithm ed25519`; `./isthmus release` prints its public half",
    )
}

/// Refuses the SHA-256 of a public token.
pub fn refuse_token(text: &str) -> Result<(), String> {
    refuse(
        text,
        &TOKENS,
        "this token is public or easily guessed; make a new one with `openssl rand -hex 16`",
    )
}

fn refuse(text: &str, known: &[&str], why: &str) -> Result<(), String> {
    match known.iter().any(|known| known.eq_ignore_ascii_case(text)) {
        true => Err(why.into()),
        false => Ok(()),
    }
}

/// Removes public keys and tokens from a document's tree, and reports each as a problem. Without them nothing is open,
/// so the rest of the document stays in force.
pub fn leave_out(root: &mut Node, problems: &mut Vec<Problem>) {
    let paths: [(&str, fn(&str) -> Result<(), String>); 2] =
        [("system.upgrade_key", refuse_key), ("http.token_sha256", refuse_token)];
    for (path, refuse) in paths {
        let Some(node) = root.find(path) else { continue };
        let Value::Text(text) = &node.value else { continue };
        if let Err(why) = refuse(text) {
            problems.push(problem(node, path, format!("{why}; ignored"), String::new()));
            root.remove(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Document, Sources, check};

    #[test]
    fn public_secrets_are_refused_and_ignored_in_documents() {
        let text = format!(
            "[system]\nhostname = \"a\"\nupgrade_key = \"{}\"\n[http]\ntoken_sha256 = \"{}\"\n",
            KEYS[0].to_ascii_uppercase(),
            TOKENS[0]
        );
        assert_eq!(check(text.as_bytes()).unwrap_err().len(), 2);
        let (document, problems) =
            Document::load(&Sources { disk: Some(text.as_bytes()), ..Sources::default() });
        assert!(problems.len() == 2 && problems.iter().all(|problem| !problem.is_warning()));
        let config = document.config();
        assert_eq!((config.system.upgrade_key, config.http.token_sha256), (None, None));
        assert_eq!((config.system.hostname.as_str(), document.is_closed()), ("a", false));
        let mut document = Document::default();
        for (path, values) in
            [("system.upgrade_key", &KEYS[..]), ("http.token_sha256", &TOKENS[..])]
        {
            for value in values {
                assert!(document.set(path, value).is_err(), "{path} {value}");
                assert_eq!(value.len(), 64);
            }
            assert!(document.set(path, &"ab".repeat(32)).is_ok(), "{path}");
        }
    }
}
