mod basic;
mod failover;
mod hostile;
mod streams;
