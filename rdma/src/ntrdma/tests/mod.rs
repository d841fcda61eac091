mod connections;
mod frames;
mod hostile;
mod life;
mod room;
mod verbs;
