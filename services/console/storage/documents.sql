-- Documents: what is known of the files in the Volume.

-- name: hold_document_name
-- Let uploads of the same bytes under the same name by the same person follow each other.
-- locks: a transaction-wide advisory lock on the digest
SELECT pg_advisory_xact_lock(hashtextextended($1, 4951))

-- name: find_same_document
-- The same bytes under the same name by the same person, uploaded a moment ago.
SELECT id, name, volume_path, sha256, bytes, pages, customer, uploaded_by, created_at
  FROM lockkeeper.documents
 WHERE sha256 = $1
   AND created_at > lockkeeper.clock() - make_interval(secs => $4)
   AND name = $2
   AND uploaded_by = $3
   AND customer IS NOT DISTINCT FROM $5
 ORDER BY created_at DESC
 LIMIT 1

-- name: add_document
-- Make a stored file known.
-- owner: console
INSERT INTO lockkeeper.documents (id, name, volume_path, sha256, bytes, pages, customer, uploaded_by)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
RETURNING id, name, volume_path, sha256, bytes, pages, customer, uploaded_by, created_at

-- name: read_document
-- One document.
SELECT id, name, volume_path, sha256, bytes, pages, customer, uploaded_by, created_at
  FROM lockkeeper.documents
 WHERE id = $1
