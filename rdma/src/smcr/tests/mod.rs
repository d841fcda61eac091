mod basic;
mod hostile;
mod streams;
