{{- define "periplus.fullname" -}}
{{- if contains "periplus" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-periplus" .Release.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{/* Labels that select the pods of one component. Argument: dict "root" $ "component" NAME */}}
{{- define "periplus.selector" -}}
app.kubernetes.io/name: periplus
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "periplus.labels" -}}
{{ include "periplus.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{/* An entry of `agents` with the keys that it leaves out, as JSON. Argument: dict "root" $ "agent" ENTRY */}}
{{- define "periplus.agent" -}}
{{- mergeOverwrite (deepCopy .root.Values.agentDefaults) .agent | toJson }}
{{- end }}

{{- define "periplus.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
{{- end }}

{{- define "periplus.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* The port of the health service if probes ask it, else nothing. */}}
{{- define "periplus.healthPort" -}}
{{- with .Values.probes }}{{ if and .enabled (eq .kind "grpc") }}{{ .port }}{{ end }}{{ end }}
{{- end }}

{{/* Argument: dict "root" $ "port" PORT */}}
{{- define "periplus.probes" -}}
{{- $probes := .root.Values.probes }}
{{- $port := .port | int }}
{{- if $probes.enabled }}
{{- range $name := list "startupProbe" "livenessProbe" "readinessProbe" }}
{{ $name }}:
  {{- if eq $probes.kind "grpc" }}
  grpc: {port: {{ $probes.port }}}
  {{- else }}
  tcpSocket: {port: {{ $port }}}
  {{- end }}
  timeoutSeconds: 5
  {{- if eq $name "startupProbe" }}
  periodSeconds: 2
  failureThreshold: {{ div (int $probes.startupSeconds) 2 }}
  {{- else }}
  periodSeconds: {{ $probes.periodSeconds }}
  failureThreshold: {{ $probes.failureThreshold }}
  {{- end }}
{{- end }}
{{- end }}
{{- end }}
