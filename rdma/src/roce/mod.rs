//! RoCEv2 (and RoCEv1) in software, over any Ethernet port: the first verbs provider
//! (InfiniBand Architecture vol. 1, ch. 9 to 12, annexes A16, A17; stock peer: Linux rdma_rxe).

pub mod wire;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
