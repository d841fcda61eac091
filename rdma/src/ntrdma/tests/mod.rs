mod connections;
mod hostile;
mod life;
mod verbs;
