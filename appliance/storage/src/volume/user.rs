//! Who asks volumes for something.

/// A user of the volumes of a loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct User(pub u16);

impl User {
    /// The server of the same loop.
    pub const SERVER: User = User(0);
    /// The operator, who has a volume read.
    pub const OPERATOR: User = User(1);

    /// The users of the loop on another core (1 and up).
    pub const fn core(core: u16) -> User {
        User(1 + core)
    }

    /// Place in tables that are kept by user.
    pub fn index(self) -> usize {
        self.0.into()
    }
}

/// What a request is called by who made it. Its completion has the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tag {
    /// Whose it is.
    pub user: User,
    /// The user's own word.
    pub word: u64,
}

impl Tag {
    /// A word of a user.
    pub const fn new(user: User, word: u64) -> Tag {
        Tag { user, word }
    }
}

/// A word of the server, or of whoever has a volume for itself.
impl From<u64> for Tag {
    fn from(word: u64) -> Tag {
        Tag::new(User::SERVER, word)
    }
}
