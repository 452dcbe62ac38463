"""Three experiments on the real pipeline (`make labs`): each prints its story and adds a chart to one page."""
