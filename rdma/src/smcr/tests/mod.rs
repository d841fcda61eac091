mod basic;
mod failover;
mod hostile;
mod moments;
mod streams;
