//! Runs every case on every provider.

mod roce {
    use conformance::roce::RocePair;

    mod ipv4 {
        use super::*;
        conformance::suite!(RocePair::new(1, false, |roce| roce));
    }

    mod ipv6 {
        use super::*;
        conformance::suite!(RocePair::new(2, true, |roce| roce));
    }
}

mod ntrdma {
    use conformance::ntrdma::NtrdmaPair;
    use ntrdma::testing::Way;

    mod posted {
        use super::*;
        conformance::suite!(NtrdmaPair::new(1, Way::Posted));
    }

    mod lent {
        use super::*;
        conformance::suite!(NtrdmaPair::new(2, Way::Lent));
    }

    mod engine {
        use super::*;
        conformance::suite!(NtrdmaPair::new(3, Way::Engine));
    }

    mod stream {
        use super::*;
        conformance::suite!(NtrdmaPair::new(4, Way::Stream));
    }
}

/// ConnectX on its model.
mod connectx {
    use conformance::connectx::ConnectXPair;

    mod ipv4 {
        use super::*;
        conformance::suite!(ConnectXPair::new(1, false));
    }

    mod ipv6 {
        use super::*;
        conformance::suite!(ConnectXPair::new(2, true));
    }
}

/// A provider that behaves like hardware.
mod late {
    use conformance::late::Late;
    use conformance::roce::RocePair;

    mod ipv4 {
        use super::*;
        conformance::suite!(RocePair::new(1, false, Late::new));
    }

    mod ipv6 {
        use super::*;
        conformance::suite!(RocePair::new(2, true, Late::new));
    }
}
