"""What was found, as plain records of bounded size, and what is made of them: report, page, issue and bundle."""
