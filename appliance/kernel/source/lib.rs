//! Empty: the package exists for its dependency (see Cargo.toml).
