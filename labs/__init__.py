"""Three experiments on the real pipeline (`make labs`): each prints its story and draws its chart into one page."""
