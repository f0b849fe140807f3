{{/* Names, labels and the figures that several objects share. Each takes a dict of root, name, service. */}}

{{- define "lockkeeper.prefix" -}}
{{- .Values.fullnameOverride | default .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "lockkeeper.component" -}}
{{- .name | replace "_" "-" -}}
{{- end -}}

{{- define "lockkeeper.name" -}}
{{- include "lockkeeper.prefix" .root }}-{{ include "lockkeeper.component" . -}}
{{- end -}}

{{- define "lockkeeper.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Only what never changes: selectors cannot be changed later. */}}
{{- define "lockkeeper.selector" -}}
app.kubernetes.io/name: lockkeeper
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ include "lockkeeper.component" . }}
{{- end -}}

{{- define "lockkeeper.labels" -}}
app.kubernetes.io/name: lockkeeper
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: lockkeeper
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "lockkeeper.componentLabels" -}}
{{ include "lockkeeper.labels" .root }}
app.kubernetes.io/component: {{ include "lockkeeper.component" . }}
{{- end -}}

{{/* The services that are installed, as YAML: the values of each with what files/services.yaml says of it. */}}
{{- define "lockkeeper.services" -}}
{{- $facts := .Files.Get "files/services.yaml" | fromYaml -}}
{{- $installed := dict -}}
{{- range $name, $service := .Values.services -}}
{{- if $service.enabled -}}
{{- $_ := set $installed $name (merge (deepCopy $service) (get $facts $name)) -}}
{{- end -}}
{{- end -}}
{{- toYaml $installed -}}
{{- end -}}

{{/* The most pods of a service at one time: its highest count and one that a rollout starts besides. */}}
{{- define "lockkeeper.mostPods" -}}
{{- if eq .service.autoscaling.by "none" -}}
{{- add .service.replicas 1 -}}
{{- else -}}
{{- add .service.autoscaling.max 1 -}}
{{- end -}}
{{- end -}}

{{- define "lockkeeper.connectionsPerPod" -}}
{{- add .service.connections (ternary 1 0 .service.listens) -}}
{{- end -}}

{{/* What all pods may hold at the worst moment. */}}
{{- define "lockkeeper.connections" -}}
{{- $sum := 0 -}}
{{- $root := . -}}
{{- range $name, $service := include "lockkeeper.services" . | fromYaml -}}
{{- $of := dict "root" $root "name" $name "service" $service -}}
{{- $sum = add $sum (mul (include "lockkeeper.mostPods" $of) (include "lockkeeper.connectionsPerPod" $of)) -}}
{{- end -}}
{{- add $sum .Values.database.connectionsForRuns .Values.database.connectionsForOthers -}}
{{- end -}}

{{- define "lockkeeper.refuse" -}}
{{- $connections := include "lockkeeper.connections" . | int -}}
{{- $limit := .Values.database.connectionLimit | int -}}
{{- if gt $connections $limit -}}
{{- fail (printf "at their most, all pods, runs and people need %d database connections, and database.connectionLimit is %d: lower autoscaling.max, replicas or connections of a service, or take a larger database" $connections $limit) -}}
{{- end -}}
{{- if not .Values.database.host }}{{ fail "database.host is not set" }}{{ end -}}
{{- if and (eq .Values.database.credentials "lakebase") (not .Values.database.instance) -}}
{{- fail "database.instance is not set: with database.credentials=lakebase it names whose credentials are asked for" -}}
{{- end -}}
{{- if not .Values.databricks.host }}{{ fail "databricks.host is not set" }}{{ end -}}
{{- if and (or .Values.services.underwriting_worker.enabled .Values.services.underwriting_api.enabled) (not .Values.temporal.address) -}}
{{- fail "temporal.address is not set, and the underwriting services need it" -}}
{{- end -}}
{{- end -}}

{{/* SIGTERM comes after preStop; the drain's steps together may take three times the grace time at the very worst. */}}
{{- define "lockkeeper.preStopSeconds" -}}{{ ternary 5 0 .service.http }}{{- end -}}
{{- define "lockkeeper.terminationSeconds" -}}
{{- add (mul 3 .root.Values.graceSeconds) (include "lockkeeper.preStopSeconds" .) 5 -}}
{{- end -}}

{{- define "lockkeeper.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "lockkeeper.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
privileged: false
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The login of a principal, from its secret. */}}
{{- define "lockkeeper.credentials" -}}
{{- $values := .root.Values -}}
{{- if or .databricks (eq $values.database.credentials "lakebase") }}
- name: DATABRICKS_CLIENT_ID
  valueFrom: {secretKeyRef: {name: {{ .secret }}, key: DATABRICKS_CLIENT_ID}}
- name: DATABRICKS_CLIENT_SECRET
  valueFrom: {secretKeyRef: {name: {{ .secret }}, key: DATABRICKS_CLIENT_SECRET}}
{{- end }}
{{- if eq $values.database.credentials "lakebase" }}
- name: PGUSER
  valueFrom: {secretKeyRef: {name: {{ .secret }}, key: DATABRICKS_CLIENT_ID}}
{{- else }}
- name: PGUSER
  valueFrom: {secretKeyRef: {name: {{ .secret }}, key: PGUSER}}
- name: PGPASSWORD
  valueFrom: {secretKeyRef: {name: {{ .secret }}, key: PGPASSWORD}}
{{- end }}
{{- end -}}
