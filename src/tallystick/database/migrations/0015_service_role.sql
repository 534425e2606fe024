-- Days of bodies are made and taken out by functions of the owner's.
--
-- A service that does not own its tables may not add a partition to one. It may have these two do it: they make days that
-- are to come, and take out days that are over, and nothing else. Not everybody may: `tally migrate` grants them to the
-- service's role. The owner, whom the version before works as, may as before.
ALTER FUNCTION tally.webhook_body_ahead(integer) SECURITY DEFINER;
ALTER FUNCTION tally.webhook_body_detach(integer) SECURITY DEFINER;
REVOKE EXECUTE ON FUNCTION tally.webhook_body_ahead(integer), tally.webhook_body_detach(integer) FROM PUBLIC;
