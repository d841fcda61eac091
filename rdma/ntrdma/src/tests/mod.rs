mod connections;
mod frames;
mod hostile;
mod life;
mod orders;
mod room;
mod threads;
mod verbs;
