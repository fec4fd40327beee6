"""Who a mail is really from: Authentication-Results, DKIM, and the policy for senders."""
