//! Users of volumes, and the tags that route completions to them.

/// A user of the volumes of a loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct User(pub u16);

impl User {
    /// The server of the same loop.
    pub const SERVER: User = User(0);
    /// The operator, whose command reads a volume.
    pub const OPERATOR: User = User(1);

    /// The NVMe target of the same loop.
    pub const NVME: User = User(2);

    /// The loop on another core (1 and up).
    pub const fn core(core: u16) -> User {
        User(2 + core)
    }

    /// Index in tables by user.
    pub fn index(self) -> usize {
        self.0.into()
    }
}

/// Tag of a request. Its completion has the same tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// The user that submitted the request.
    pub user: User,
    /// A word that the user chooses.
    pub word: u64,
}

impl Tag {
    /// The tag of a user with that word.
    pub const fn new(user: User, word: u64) -> Tag {
        Tag { user, word }
    }
}

/// The tag of the server, or of the only user of a volume.
impl From<u64> for Tag {
    fn from(word: u64) -> Tag {
        Tag::new(User::SERVER, word)
    }
}
